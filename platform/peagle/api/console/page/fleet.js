// A section for each model: tiles of its load and latencies, why K is what it is, and its replicas.

import { acceptanceChart, depthChart, gainChart, sparkline } from "./charts.js";
import { NONE, fixed, h, known, milliseconds, percent, renew, say } from "./dom.js";
import { KEPT_S, minus, quantile, replicaOf, rowOf, sum } from "./history.js";

/** Age of a plan that the Router has stopped confirming; it confirms twice a second. */
const PLAN_OLD_S = 5;
/** Drafts in the last minute from which acceptance is shown of that minute alone. */
const DRAFTS_MIN = 50;

const WORDS = { ready: "fine", running: "fine", starting: "wait", updating: "wait", recovering: "wait", dead: "bad" };
const MODES = { probing: "trying another K", pinned: "pinned by an operator", paused: "paused by an operator" };

const TILES = [
  ["speed", "Tokens/s"],
  ["load", "Running · waiting"],
  ["ttft", "TTFT p50 · p95"],
  ["itl", "ITL p50 · p95"],
  ["queue", "Queue time p50 · p95"],
  ["kv", "KV cache · prefix hits"],
];
const COLUMNS = ["Replica", "State", "K", "Acceptance length", "Running", "Waiting", "KV cache", "Tokens/s", "Gain"];

export class ModelSection {
  /** `number` is for ids: a name may have spaces, which separate ids. */
  constructor(name, number) {
    this.name = name;
    const title = h("h2", { id: `model-${number}` }, name);
    this.states = h("span", { class: "states" });
    this.tiles = new Map(TILES.map(([key, label]) => [key, makeTile(label)]));
    this.panels = h("div", { class: "panels" });
    this.depth = makePanel("K by batch size");
    this.acceptance = makePanel("Acceptance, %");
    this.gain = makePanel("Gain of speculation");
    this.panels.append(this.depth.root, this.acceptance.root, this.gain.root);
    this.choice = h("select", { id: `replica-${number}` });
    this.choosing = h("p", { class: "choose" }, h("label", { htmlFor: this.choice.id }, "Speculation of replica"), this.choice);
    this.rows = h("tbody");
    const head = h("tr", {}, ...COLUMNS.map((column) => h("th", { scope: "col" }, column)));
    const table = h("table", {}, h("thead", {}, head), this.rows);
    this.note = h("p", { class: "hint" });
    this.root = h(
      "section",
      { class: "panel model", "aria-labelledby": title.id },
      h("header", {}, title, this.states),
      h("dl", { class: "tiles" }, ...[...this.tiles.values()].map((tile) => tile.root)),
      this.choosing,
      this.panels,
      h("div", { class: "scroll", role: "region", "aria-label": `Replicas of ${name}`, tabIndex: 0 }, table),
      this.note,
    );
  }

  show(history, counts) {
    const row = rowOf(history.last, this.name);
    const before = history.before(this.name);
    this.#showStates(row, counts);
    this.#showTiles(row, before, history, counts);
    this.#showChoice(row);
    const replica = replicaOf(row, this.choice.value);
    const drafts = replica?.depths?.length > 0;
    this.panels.hidden = !drafts;
    if (drafts) {
      const earlier = replicaOf(before, replica.id);
      this.#showDepth(replica, row.depth_max, earlier);
      this.#showAcceptance(replica, earlier);
      this.#showGain(replica);
    }
    renew(this.rows, ...row.replicas.map((each) => replicaRow(each, history, this.name)));
    const left = row.replicas_left_out;
    const none = row.replicas.length ? "" : "No replica answers.";
    say(this.note, left ? `${left} more replicas are not listed, and not in the sums above.` : none);
  }

  #showStates(row, counts) {
    // Serve's states include replicas that cannot answer yet, or no longer.
    const states = Object.entries(row.states).map(([state, count]) => stateMark(state, `${count} ${state.replace("_", " ")}`));
    renew(this.states, ...states, ...(counts ? [h("span", {}, `${fixed(row.requests_open)} open requests`)] : []));
  }

  #showTiles(row, before, history, counts) {
    const speeds = history.speeds(this.name);
    const speed = this.tiles.get("speed");
    speed.set(speeds.length ? fixed(speeds.at(-1)[1]) : NONE, speeds.length ? "now; line: 2 minutes" : "needs two readings");
    speed.draw(sparkline(speeds, KEPT_S));
    const total = (field) => sum(row.replicas.map((each) => each[field] ?? 0));
    const waiting = total("waiting_requests");
    // Sums over another set of ingress processes would look like many new requests.
    const same = before?.ingresses.join() === row.ingresses.join() ? before : undefined;
    this.tiles.get("load").set(`${total("running_requests")} · ${waiting}`, finished(row, counts && same));
    for (const key of ["ttft", "itl"]) this.tiles.get(key).set(...quantiles(row[key], grownSince(row[key], same?.[key]), counts));
    this.tiles.get("queue").set(...quantiles(...queues(row, before), counts));
    const kv = row.replicas.map((each) => each.kv_usage_ratio).filter(known);
    const hits = total("prefix_query_tokens") ? percent(total("prefix_hit_tokens") / total("prefix_query_tokens")) : NONE;
    this.tiles.get("kv").set(`${kv.length ? percent(Math.max(...kv)) : NONE} · ${hits}`, "fullest replica · since start");
  }

  #showChoice(row) {
    const ids = row.replicas.filter((each) => each.depths?.length).map((each) => each.id);
    const shown = [...this.choice.options].map((option) => option.value);
    if (ids.join() !== shown.join()) {
      const chosen = this.choice.value;
      this.choice.replaceChildren(...ids.map((id) => h("option", { value: id }, id)));
      if (ids.includes(chosen)) this.choice.value = chosen;
    }
    this.choosing.hidden = ids.length < 2;
  }

  #showDepth(replica, depthMax, earlier) {
    const { root, chart, text, aside } = this.depth;
    const running = Math.max(1, replica.running_requests);
    renew(chart, depthChart(replica.depths, depthMax ?? Math.max(...replica.depths), running));
    const fallsBack = replica.depth_mode === "fallback";
    const alone = known(replica.plan_age_s) && replica.plan_age_s > PLAN_OLD_S;
    root.classList.toggle("warn", fallsBack || alone);
    const now = `K ${depthAt(replica)} now, batch ${running}`;
    say(aside, [MODES[replica.depth_mode] ?? replica.depth_mode, now].filter(Boolean).join(" · "));
    const why = alone ? `No Router for ${fixed(replica.plan_age_s)} s: the last plan holds.` : sentence(replica.depth_reason);
    const ran = ranAt(replica.steps_by_depth, earlier?.steps_by_depth);
    say(text, [why, ran].filter(Boolean).join(" "));
  }

  #showAcceptance(replica, earlier) {
    let of = replica;
    let when = "since start";
    if (earlier && minus(replica.drafts ?? 0, earlier.drafts ?? 0) >= DRAFTS_MIN) {
      const fields = ["drafts", "drafted", "accepted", "drafted_by_position", "accepted_by_position"];
      of = Object.fromEntries(fields.map((field) => [field, minus(replica[field], earlier[field])]));
      when = "last minute";
    }
    const { chart, text, aside } = this.acceptance;
    renew(chart, acceptanceChart(of.drafted_by_position, of.accepted_by_position));
    say(aside, when);
    const length = of.drafts ? 1 + of.accepted / of.drafts : null;
    say(text, `Drafts accepted, by position. Acceptance length ${fixed(length, 2)}, from ${fixed(of.drafts)} drafts.`);
  }

  #showGain(replica) {
    const { chart, text, aside } = this.gain;
    const { speedup_ratio: ratio, speedup_low: low, speedup_high: high } = replica;
    if (!known(ratio) || !known(low) || !known(high)) {
      const fixedDepth = replica.depth_mode === "static";
      renew(chart, h("p", { class: "figure none" }, NONE));
      say(aside, "");
      say(text, fixedDepth ? "K does not adapt here, so there is no estimate." : "Not known before the replica has served.");
      return;
    }
    if (replica.depth_planned === 0) {
      renew(chart, h("p", { class: "figure none" }, "off"));
      say(aside, "K = 0");
      say(text, "Drafting would cost more than it gains at this load.");
      return;
    }
    const interval = h("small", {}, `95 %: ${fixed(low, 2)} to ${fixed(high, 2)}`);
    const shown = h("p", { class: low > 1 ? "figure" : "figure none" }, `${fixed(ratio, 2)}×`, interval);
    renew(chart, shown, gainChart(ratio, low, high));
    say(aside, "estimate");
    const [planned, measured] = [replica.predicted_tokens_per_s, replica.measured_tokens_per_s].map((each) => fixed(each));
    say(text, `Tokens/s over those at K = 0, at the usual batch size. Predicted ${planned}, measured ${measured} tokens/s.`);
  }
}

function makeTile(label) {
  const value = h("dd", { class: "value" }, NONE);
  const when = h("dd", { class: "when" });
  const chart = h("dd", { class: "chart" });
  const root = h("div", { class: "tile" }, h("dt", {}, label), value, when);
  return {
    root,
    set: (text, note) => (say(value, text), say(when, note)),
    draw: (shape) => (root.append(chart), chart.replaceChildren(shape)),
  };
}

function makePanel(title) {
  const [aside, chart, text] = [h("span", { class: "aside" }), h("div", { class: "chart" }), h("p", { class: "hint" })];
  const root = h("div", { class: "part" }, h("h3", {}, title, " ", aside), chart, text);
  return { root, aside, chart, text };
}

function stateMark(state, text) {
  return h("span", { class: `state ${WORDS[state] ?? "warn"}` }, text);
}

function replicaRow(replica, history, model) {
  const speed = history.speeds(model, replica.id).at(-1)?.[1];
  const depths = replica.depths ?? [];
  const cells = [
    depths.length ? `${depthAt(replica)}` : NONE,
    fixed(replica.acceptance_length, 2),
    fixed(replica.running_requests),
    fixed(replica.waiting_requests),
    percent(replica.kv_usage_ratio),
    fixed(speed),
    known(replica.speedup_ratio) && replica.depth_planned !== 0 ? `${fixed(replica.speedup_ratio, 2)}×` : NONE,
  ];
  const state = String(replica.state ?? "?").toLowerCase();
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, replica.id),
    h("td", { class: "word" }, stateMark(state, state)),
    ...cells.map((cell) => h("td", {}, cell)),
  );
}

/** K of the present batch; of a batch of one while nothing runs. */
const depthAt = ({ depths, running_requests: running }) => depths[Math.min(Math.max(1, running), depths.length - 1)];

/** A tile's figures of a histogram: of the last minute where it holds any, else since the start. */
function quantiles(now, lately, counts) {
  if (!counts) return [NONE, "metrics are off (--no-metrics)"];
  const recent = lately && sum(lately.counts) > 0;
  const of = recent ? lately : now;
  const [half, most] = [quantile(of, 0.5), quantile(of, 0.95)];
  if (half === null) return [`${NONE} · ${NONE}`, "ms"];
  return [`${milliseconds(half)} · ${milliseconds(most)}`, recent ? "ms, last minute" : "ms, since start"];
}

/** Queue times since the start, and lately. Compared by replica: a new replica's past is not of the last minute. */
function queues(row, before) {
  const now = row.replicas.filter((each) => each.queue);
  const lately = now.map((each) => grownSince(each.queue, replicaOf(before, each.id)?.queue)).filter(Boolean);
  return [addUp(now.map((each) => each.queue)), addUp(lately)];
}

const grownSince = (now, then) => then && { bounds: now.bounds, counts: minus(now.counts, then.counts) };

function addUp(histograms) {
  const [first, ...others] = histograms;
  if (!first) return { bounds: [], counts: [] };
  return others.reduce((total, each) => ({ ...total, counts: total.counts.map((count, at) => count + each.counts[at]) }), first);
}

function finished(row, before) {
  if (!before) return "requests";
  const { ok = 0, shed = 0, failed = 0 } = minus(row.requests, before.requests);
  const rest = [shed && `${shed} shed`, failed && `${failed} failed`].filter(Boolean).join(", ");
  return `${ok} answered in the last minute${rest && `, ${rest}`}`;
}

/** Which K the last minute's decode steps ran at, the most frequent first. */
function ranAt(steps, earlier) {
  if (!steps || !earlier) return "";
  const lately = Object.entries(minus(steps, earlier)).filter(([, count]) => count > 0);
  const total = sum(lately.map(([, count]) => count));
  if (!total) return "";
  lately.sort(([, one], [, other]) => other - one);
  const shares = lately.slice(0, 3).map(([depth, count]) => `${percent(count / total)} at K ${depth}`);
  return `Steps of the last minute: ${shares.join(", ")}.`;
}

const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");
