// Asks a model and shows its answer as it streams, with the tokens that were drafted.
//
// An event of a stream carries what one step of the engine yielded for the request: the drafts that the target accepted,
// in order, and after them one token of the target's own. `token_ids` says how many tokens an event has, and `logprobs`
// where each begins. A server that is ahead of its reader merges steps, so the engine's own count is compared at the end.

import { NONE, byId, fixed, h, known, milliseconds, percent, say } from "./dom.js";
import { streamChat } from "./server.js";

const RUNS_KEPT = 6;

/** Figures of one answer so far. */
class Answer {
  constructor(depthMax) {
    this.depthMax = depthMax;
    this.startedMs = performance.now();
    this.firstMs = this.lastMs = null;
    this.tokens = this.events = this.coloured = 0;
    this.usage = this.drafting = null;
  }

  /** Take an event's tokens; return how many of them were drafts. */
  take(count) {
    this.lastMs = performance.now();
    this.firstMs ??= this.lastMs;
    this.tokens += count;
    this.events += 1;
    const drafts = Math.max(0, count - 1);
    this.coloured += drafts;
    return drafts;
  }

  /** Tokens/s after the first token; the time before it is TTFT. */
  get speed() {
    const seconds = (this.lastMs - this.firstMs) / 1000;
    return this.tokens > 1 && seconds > 0 ? (this.tokens - 1) / seconds : null;
  }

  get ttft_s() {
    return this.firstMs === null ? null : (this.firstMs - this.startedMs) / 1000;
  }

  /** The engine's own figure once the answer is over; until then, what the events show. */
  get acceptanceLength() {
    if (this.usage && !this.usage.speculation?.drafted_tokens) return null;
    if (this.drafting?.num_spec_steps) return this.drafting.mean_acceptance_length;
    return this.events > 1 ? (this.tokens - 1) / (this.events - 1) : null;
  }
}

export class Playground {
  #askForKey;
  #stop = null;
  #offered = "";
  /** Height of the answer as of the last frame, and the request for the next. */
  #height = 0;
  #frame = null;

  constructor(askForKey) {
    this.#askForKey = askForKey;
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask();
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
    });
    byId("stop").addEventListener("click", () => this.#stop?.abort());
    byId("send").disabled = true;
  }

  /** Offer these models in the selection. */
  offer(models) {
    const offered = models.map((model) => `${model.name} ${model.depth_max}`).join("\n");
    if (offered === this.#offered) return;
    this.#offered = offered;
    const chosen = byId("model").value;
    byId("model").replaceChildren(...models.map((model) => h("option", { value: model.name }, model.name)));
    if (models.some((model) => model.name === chosen)) byId("model").value = chosen;
    byId("send").disabled = models.length === 0;
  }

  async #ask() {
    if (this.#stop || byId("send").disabled) return;
    this.#stop = new AbortController();
    const depth = byId("depth-max").value;
    const answer = new Answer(depth);
    this.#begin();
    try {
      for await (const event of streamChat(this.#body(depth), this.#stop.signal)) this.#show(event, answer);
      this.#end(answer);
    } catch (error) {
      if (this.#stop.signal.aborted) say(byId("answer-said"), "Stopped.");
      else if (error.status === 401) this.#askForKey(error.message);
      if (!this.#stop.signal.aborted) this.#fail(error);
    } finally {
      this.#stop = null;
      byId("send").disabled = false;
      byId("stop").disabled = true;
      byId("answer").removeAttribute("aria-busy");
    }
  }

  #body(depth) {
    return {
      model: byId("model").value,
      messages: [{ role: "user", content: byId("prompt").value }],
      max_tokens: byId("max-tokens").valueAsNumber,
      temperature: byId("temperature").valueAsNumber,
      stream: true,
      stream_options: { include_usage: true },
      return_token_ids: true,
      ...(byId("split").checked ? { logprobs: true } : {}),
      ...(depth === "" ? {} : { speculation: { depth_max: Number(depth) } }),
    };
  }

  #begin() {
    byId("send").disabled = true;
    byId("stop").disabled = false;
    byId("ask-error").hidden = true;
    byId("answer-part").hidden = false;
    byId("answer").replaceChildren();
    this.#height = 0;
    byId("answer").setAttribute("aria-busy", "true");
    say(byId("answer-check"), "");
    say(byId("answer-said"), "Answering");
  }

  #fail(error) {
    byId("ask-error").hidden = false;
    say(byId("ask-error"), error.message);
    say(byId("answer-said"), "");
  }

  #show(event, answer) {
    if (event.usage) answer.usage = event.usage;
    if (event.metrics?.speculative_decoding) answer.drafting = event.metrics.speculative_decoding;
    const choice = event.choices?.[0];
    if (!choice) return;
    const count = choice.token_ids?.length ?? 0;
    if (count) {
      const drafts = answer.take(count);
      byId("answer").append(pieceOf(choice, count, drafts, answer.events));
      this.#frame ??= requestAnimationFrame(() => this.#follow());
    }
    this.#figures(answer);
  }

  /** Scroll to the end, once for all events of a frame, because it lays out the whole answer. */
  #follow() {
    this.#frame = null;
    const part = byId("answer");
    // A reader who has scrolled up stays there.
    const follows = this.#height - part.scrollTop - part.clientHeight < 40;
    this.#height = part.scrollHeight;
    if (follows) part.scrollTop = this.#height;
  }

  #figures(answer) {
    const speculation = answer.usage?.speculation;
    const accepted = speculation
      ? `${fixed(speculation.accepted_tokens)} of ${fixed(speculation.drafted_tokens)}`
      : fixed(answer.coloured);
    const tiles = [
      ["Tokens/s", fixed(answer.speed)],
      ["Acceptance length", fixed(answer.acceptanceLength, 2)],
      ["Accepted drafts", answer.usage && !speculation ? NONE : accepted],
      ["Tokens", fixed(answer.tokens)],
      ["TTFT, ms", milliseconds(answer.ttft_s)],
    ];
    const part = byId("answer-figures");
    if (!part.children.length) {
      part.append(...tiles.map(([label]) => h("div", { class: "tile" }, h("dt", {}, label), h("dd", { class: "value" }))));
    }
    tiles.forEach(([, value], index) => say(part.children[index].lastChild, value));
  }

  #end(answer) {
    this.#figures(answer);
    say(byId("answer-check"), checkOf(answer));
    const length = fixed(answer.acceptanceLength, 2);
    say(byId("answer-said"), `${answer.tokens} tokens, ${fixed(answer.speed)} tokens/s, acceptance length ${length}.`);
    const cells = [fixed(answer.tokens), fixed(answer.speed), `${milliseconds(answer.ttft_s)} ms`, length];
    const depth = h("th", { scope: "row" }, answer.depthMax === "" ? "auto" : answer.depthMax);
    const rows = byId("runs").tBodies[0];
    rows.prepend(h("tr", {}, depth, ...cells.map((cell) => h("td", {}, cell))));
    while (rows.rows.length > RUNS_KEPT) rows.lastChild.remove();
    byId("runs-part").hidden = false;
  }
}

/** What an event adds to the answer: a mark for each token, or one for all where their borders are not known. */
function pieceOf(choice, count, drafts, number) {
  const text = choice.delta.content || choice.delta.reasoning || choice.delta.reasoning_content || "";
  const kind = choice.delta.content ? "" : " thought";
  const title = count === 1 ? `Event ${number}: 1 token` : `Event ${number}: ${count} tokens, ${drafts} of them drafts`;
  const step = h("span", { class: `event${kind}`, title });
  const tokens = choice.logprobs?.content?.map((each) => each.token) ?? [];
  if (tokens.length === count && tokens.join("") === text) {
    step.append(...tokens.map((token, index) => mark(token, index < drafts ? "t d" : "t")));
  } else {
    step.append(mark(text, drafts ? "t d mixed" : "t"));
  }
  return step;
}

const mark = (text, kind) => h("span", { class: /^\n/.test(text) ? `${kind} line` : kind }, text);

/** Compare the marks with the engine's own count, and say what they mean. */
function checkOf(answer) {
  const speculation = answer.usage?.speculation;
  if (!known(speculation?.accepted_tokens) || !speculation.drafted_tokens) return "Nothing was drafted for this answer.";
  const { accepted_tokens: accepted, drafted_tokens: drafted } = speculation;
  const told = `The engine counts ${accepted} accepted of ${drafted} drafted (${percent(accepted / drafted)})`;
  if (accepted === answer.coloured) return `${told}, as marked. Rejected drafts are never sent.`;
  const marked = `${told}; ${answer.coloured} are marked`;
  // Of merged steps the target's own tokens look like drafts, but for the last.
  if (answer.coloured > accepted) return `${marked}, since steps arrived merged: some tokens of the target are among them.`;
  return `${marked}: the answer ended within its last step, and what was accepted beyond is not sent.`;
}
