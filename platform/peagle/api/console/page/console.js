// Entry point: polls the server's figures while the page is visible, and asks for an API key if the server requires one.

import { byId, h, say } from "./dom.js";
import { ModelSection } from "./fleet.js";
import { History } from "./history.js";
import { Playground } from "./playground.js";
import { keepKey, readKey, readStatus } from "./server.js";

const POLL_MS = 2000;

const history = new History();
const sections = new Map();
const playground = new Playground(askForKey);
let timer;
let polling = false;

function setLive(state, text) {
  byId("live").dataset.state = state;
  say(byId("live"), text);
}

function askForKey(message) {
  setLive("warn", "An API key is needed");
  say(byId("key-text"), `${message} A key is kept in this tab only, and forgotten when it closes.`);
  showKeyPanel(true);
}

function keep(key) {
  keepKey(key);
  byId("key").value = "";
  byId("key").placeholder = key ? "a key is kept in this tab" : "";
}

function showKeyPanel(shown) {
  byId("key-panel").hidden = !shown;
  byId("key-toggle").setAttribute("aria-expanded", String(shown));
}

function showFigures(figures) {
  history.add(figures);
  say(byId("version"), figures.version);
  playground.offer(figures.models.filter((model) => model.generates));
  const names = figures.models.map((model) => model.name);
  if (names.join("\n") !== [...sections.keys()].join("\n")) {
    sections.clear();
    names.forEach((name, number) => sections.set(name, new ModelSection(name, number)));
    const empty = h("p", { className: "panel empty" }, "No model is served.");
    byId("models").replaceChildren(...(names.length ? [...sections.values()].map((each) => each.root) : [empty]));
  }
  for (const section of sections.values()) section.show(history, figures.counts);
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden || polling) return;
  polling = true;
  const key = readKey();
  try {
    showFigures(await readStatus());
    if (!document.hidden) setLive("fine", "Live");
  } catch (error) {
    if (error.status === 401 && key === readKey()) {
      askForKey(error.message);
      return; // no poll can succeed before another key is entered
    }
    const ours = error.status === undefined; // a defect of this page
    setLive("bad", ours ? "The figures cannot be shown" : error.message);
    if (ours) console.error(error);
  } finally {
    polling = false;
  }
  timer = setTimeout(poll, POLL_MS);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) setLive("wait", "Paused");
  else poll();
});

byId("key-toggle").addEventListener("click", () => {
  showKeyPanel(byId("key-panel").hidden);
  if (!byId("key-panel").hidden) byId("key").focus();
});

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(byId("key").value.trim());
  byId("key-toggle").focus(); // the field that has the focus is about to be hidden
  showKeyPanel(false);
  poll();
});

byId("key-forget").addEventListener("click", () => {
  keep("");
  say(byId("key-text"), "The key is forgotten.");
  poll();
});

keep(readKey());
poll();
