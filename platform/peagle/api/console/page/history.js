// Figures of the last polls, and their differences. Counters only grow, unless a process restarts.

export const WINDOW_S = 60;
export const KEPT_S = 120;

const grown = (now, then) => (then === undefined || now < then ? now : now - then);

/** Subtract counts, lists of counts or objects of counts; a count that is smaller than before was reset. */
export function minus(now, then) {
  if (typeof now === "number") return grown(now, then);
  if (Array.isArray(now)) return now.map((value, index) => grown(value, then?.[index]));
  return Object.fromEntries(Object.entries(now).map(([key, value]) => [key, grown(value, then?.[key])]));
}

export const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

/** Estimate a quantile of a histogram, as Prometheus does: linear within a bucket; null without values. */
export function quantile({ bounds, counts }, share) {
  const total = sum(counts);
  if (total === 0) return null;
  let left = share * total;
  for (const [index, count] of counts.entries()) {
    if (count > 0 && left <= count) {
      if (index >= bounds.length) return bounds[bounds.length - 1];
      const low = index === 0 ? 0 : bounds[index - 1];
      return low + ((bounds[index] - low) * left) / count;
    }
    left -= count;
  }
  return bounds[bounds.length - 1];
}

/** The polls of the last two minutes. */
export class History {
  #polls = [];

  add(figures) {
    const last = this.#polls.at(-1);
    // Several pages share an answer, and the clocks of ingress processes differ a little: an older one tells nothing new.
    // Much older means that the server's clock was set back.
    if (last && figures.at_s < last.at_s - WINDOW_S) this.#polls = [];
    else if (last && figures.at_s <= last.at_s) return;
    this.#polls.push(figures);
    this.#polls = this.#polls.filter((poll) => figures.at_s - poll.at_s <= KEPT_S);
  }

  get last() {
    return this.#polls.at(-1);
  }

  /** A model's row in the oldest poll of the last minute; undefined if it is also the latest poll. */
  before(model) {
    const poll = this.#polls.find((each) => this.last.at_s - each.at_s <= WINDOW_S);
    return poll === this.last ? undefined : rowOf(poll, model);
  }

  /** Tokens/s of a model between each two polls: pairs of age in seconds and speed. With `id`, the last of one replica. */
  speeds(model, id) {
    const polls = id === undefined ? this.#polls : this.#polls.slice(-2);
    const pairs = polls.slice(1).map((poll, index) => [polls[index], poll]);
    return pairs.map(([earlier, later]) => {
      const then = tokensOf(rowOf(earlier, model));
      const now = tokensOf(rowOf(later, model));
      const ids = id === undefined ? [...now.keys()] : [id].filter((each) => now.has(each));
      // Tokens from before the first poll of a replica are not of this interval.
      const tokens = sum(ids.filter((each) => then.has(each)).map((each) => grown(now.get(each), then.get(each))));
      return [this.last.at_s - later.at_s, tokens / (later.at_s - earlier.at_s)];
    });
  }
}

export const rowOf = (poll, model) => poll.models.find((row) => row.name === model);

export const replicaOf = (row, id) => row?.replicas.find((replica) => replica.id === id);

const tokensOf = (row) => new Map((row?.replicas ?? []).map((each) => [each.id, each.generation_tokens]));
