// Which items the library shows, and in what order. Pure: ten thousand items go through here at every key
// typed into the search field, so the comparable forms are made once.

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

/** Under this an item does not count as begun: opening the wrong film leaves no trace. */
export const BEGUN_MS = 10_000;

export const FILTERS = [
  { id: "all", name: "All", keep: () => true },
  { id: "film", name: "Films", keep: (item) => item.kind === "film" },
  { id: "music", name: "Music", keep: (item) => item.kind === "music" },
  { id: "begun", name: "In progress", keep: isBegun },
  { id: "fresh", name: "Not seen", keep: (item) => !item.finished && !isBegun(item) },
];

const SORTS = {
  title: (a, b) => a.rank - b.rank,
  added: (a, b) => b.added - a.added || a.rank - b.rank,
  long: (a, b) => b.length - a.length || a.rank - b.rank,
  short: (a, b) => a.length - b.length || a.rank - b.rank,
};

export function isBegun(item) {
  return !item.finished && (item.positionMs ?? 0) >= BEGUN_MS;
}

/** How far an item has been watched, 0 to 1. */
export function seenPart(item) {
  if (item.finished) return 1;
  if (!item.durationMs) return 0;
  return Math.min(1, (item.positionMs ?? 0) / item.durationMs);
}

/** Letters without their marks and in one case, so that "amelie" finds "Amélie". */
function plain(text) {
  return String(text ?? "").normalize("NFD").replace(/\p{M}+/gu, "").toLowerCase();
}

export class Catalog {
  #entries = [];
  #byId = new Map();

  /** Replaces the items; the order by title is worked out here, once. */
  replace(items) {
    this.#entries = items.map((item) => ({
      item,
      added: item.addedAt ?? 0,
      length: item.durationMs ?? 0,
      text: plain(`${item.title} ${item.file} ${item.folder}`),
      rank: 0,
    }));
    this.#entries.sort((a, b) => collator.compare(a.item.title, b.item.title) || collator.compare(a.item.file, b.item.file));
    this.#entries.forEach((entry, rank) => { entry.rank = rank; });
    this.#byId = new Map(this.#entries.map((entry) => [entry.item.id, entry.item]));
  }

  get size() {
    return this.#entries.length;
  }

  get(id) {
    return this.#byId.get(id);
  }

  /** Every word of `query` must occur; an unknown filter or sort shows everything by title. */
  select({ query = "", filter = "all", sort = "title" } = {}) {
    const words = plain(query).split(/\s+/).filter(Boolean);
    const keep = FILTERS.find((each) => each.id === filter)?.keep ?? (() => true);
    return this.#entries
      .filter((entry) => keep(entry.item) && words.every((word) => entry.text.includes(word)))
      .sort(SORTS[sort] ?? SORTS.title)
      .map((entry) => entry.item);
  }

  /** How many items each filter would show. */
  counts() {
    return Object.fromEntries(FILTERS.map(({ id, keep }) => [id, this.#entries.reduce((n, { item }) => n + (keep(item) ? 1 : 0), 0)]));
  }

  /** The begun ones, newest files first. */
  begun(limit) {
    return this.select({ filter: "begun", sort: "added" }).slice(0, limit);
  }
}
