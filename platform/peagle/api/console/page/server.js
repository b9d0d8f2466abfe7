// Requests of the page to its own server, with the API key that was entered.

const KEY = "peagle-api-key";

export const readKey = () => sessionStorage.getItem(KEY) ?? "";

export function keepKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** An error answer with the server's message. `status` is 0 if there is no complete answer. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const key = readKey();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    if (options.signal?.aborted && error.name === "AbortError") throw error;
    throw new Refusal(0, "The server does not answer.");
  }
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message || message;
  } catch {
    // A proxy in between may answer without OpenAI's error object.
  }
  const after = response.headers.get("Retry-After");
  throw new Refusal(response.status, /^\d+$/.test(after) ? `${message} Try again in ${after} s.` : message);
}

export async function readStatus() {
  return (await call("console/status", { signal: AbortSignal.timeout(10_000) })).json();
}

/** Yield the events of a streamed chat completion. Throws a Refusal if the stream reports an error or ends early. */
export async function* streamChat(body, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of dataOf(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Refusal(response.status, event.error.message);
    yield event;
  }
  throw new Refusal(0, "The answer broke off before its end.");
}

async function* dataOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        for (const line of event.split("\n")) if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  } finally {
    // Lets the server stop an answer that is not read to its end.
    reader.cancel().catch(() => {});
  }
}
