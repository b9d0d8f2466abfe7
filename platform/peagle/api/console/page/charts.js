// Small charts of plain elements. Each has a sentence for screen readers; sighted readers find the numbers in it too.

import { fixed, h, percent, svg } from "./dom.js";

/** A line over the last `span_s` seconds; `pairs` are ages in seconds and values, the oldest first. */
export function sparkline(pairs, span_s) {
  const top = Math.max(1, ...pairs.map(([, value]) => value));
  const points = pairs.map(([age_s, value]) => `${(100 * (span_s - age_s)) / span_s},${29 - (28 * value) / top}`);
  const shape = svg("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" });
  if (points.length > 1) {
    const [first, last] = [points[0].split(",")[0], points.at(-1).split(",")[0]];
    shape.append(
      svg("polygon", { points: `${first},30 ${points.join(" ")} ${last},30` }),
      svg("polyline", { points: points.join(" ") }),
    );
  }
  return shape;
}

/** Runs of equal K: `depths[b]` is K of a batch of b requests, and the last one of all above. No batch is 0. */
export function runsOf(depths) {
  const runs = [];
  for (let batch = 1; batch < depths.length; batch += 1) {
    const run = runs.at(-1);
    if (run && run.depth === depths[batch]) run.last = batch;
    else runs.push({ first: batch, last: batch, depth: depths[batch] });
  }
  return runs.length ? runs : [{ first: 1, last: 1, depth: depths[0] ?? 0 }];
}

const span = ({ first, last }) => (first === last ? `${first}` : `${first} to ${last}`);

/** K by batch size, on a logarithmic axis: small batches are where K changes, and are seen most. */
export function depthChart(depths, depthMax, running) {
  const runs = runsOf(depths);
  const largest = runs.at(-1).last;
  const at = (batch) => (100 * Math.log2(batch)) / Math.log2(largest + 1);
  const now = Math.min(running, largest);
  const plot = h("div", { class: "plot", "aria-hidden": "true" });
  for (const run of runs) {
    const here = now >= run.first && now <= run.last;
    const column = h("div", { class: here ? "step here" : "step" });
    column.style.left = `${at(run.first)}%`;
    column.style.width = `${at(run.last + 1) - at(run.first)}%`;
    const bar = h("div", { class: "bar" });
    bar.style.height = `${(100 * run.depth) / Math.max(1, depthMax)}%`;
    column.append(h("span", {}, `${run.depth}`), bar);
    plot.append(column);
  }
  const axis = h("div", { class: "axis", "aria-hidden": "true" });
  for (let batch = 1; batch <= largest; batch *= 2) {
    const tick = h("span", {}, `${batch}`);
    tick.style.left = `${(at(batch) + at(batch + 1)) / 2}%`;
    axis.append(tick);
  }
  const told = runs.map((run) => `${run.depth} for ${span(run)}`).join(", ");
  return h("div", { role: "img", "aria-label": `K by requests at once: ${told}` }, plot, axis);
}

/** Drafts of fewer than this many say little about a position. */
const FEW = 20;

/** Accepted over drafted, by position. */
export function acceptanceChart(drafted, accepted) {
  const plot = h("div", { class: "plot columns", "aria-hidden": "true" });
  const axis = h("div", { class: "axis columns", "aria-hidden": "true" });
  const told = [];
  for (const [index, count] of drafted.entries()) {
    const ratio = count ? accepted[index] / count : null;
    const column = h("div", { class: count < FEW ? "column few" : "column", title: `${accepted[index]} of ${count} drafts` });
    const bar = h("div", { class: "bar" });
    bar.style.height = `${100 * (ratio ?? 0)}%`;
    column.append(h("span", {}, count ? fixed(100 * ratio) : "–"), bar);
    plot.append(column);
    axis.append(h("span", {}, `${index + 1}`));
    if (count) told.push(`${index + 1}: ${percent(ratio)}`);
  }
  return h("div", { role: "img", "aria-label": `Accepted drafts by position: ${told.join(", ") || "none yet"}` }, plot, axis);
}

/** A ratio with its interval on a logarithmic scale around 1, where speculation neither gains nor costs. */
export function gainChart(ratio, low, high) {
  const least = Math.min(0.5, low / 1.1);
  const most = Math.max(4, high * 1.1);
  const at = (value) => (100 * Math.log(value / least)) / Math.log(most / least);
  const track = h("div", { class: "track", "aria-hidden": "true" });
  const mark = (kind, value) => {
    const element = h("div", { class: kind });
    element.style.left = `${at(value)}%`;
    track.append(element);
    return element;
  };
  mark("one", 1);
  mark(low > 1 ? "range" : "range unsure", low).style.width = `${at(high) - at(low)}%`;
  mark("point", ratio);
  const axis = h("div", { class: "axis", "aria-hidden": "true" });
  for (const value of [0.5, 1, 2, 4, 8].filter((each) => each >= least && each <= most)) {
    const tick = h("span", {}, `${value}×`);
    tick.style.left = `${at(value)}%`;
    axis.append(tick);
  }
  const told = `${fixed(ratio, 2)} times the tokens per second; 95 % interval ${fixed(low, 2)} to ${fixed(high, 2)}`;
  return h("div", { role: "img", "aria-label": told, class: "gain" }, track, axis);
}
