// The library: what there is, what is being found, and what could not be read and why.

import { Catalog, FILTERS, seenPart } from "./catalog.js";
import { byId, el, isTyping, say } from "./dom.js";
import { explain } from "./errors.js";
import { clock, codecName, definition, plural, roughLength } from "./format.js";
import { Grid } from "./grid.js";
import { Pictures } from "./pictures.js";

/** Asked again this soon while the server scans, and this late otherwise. */
const SCANNING_MS = 1_000;
const QUIET_MS = 20_000;
/** A problem list longer than this is cut, with the number of the rest. */
const PROBLEMS_SHOWN = 200;
const CONTINUE_SHOWN = 12;

export class LibraryView {
  #api;
  #onSignOut;
  #catalog = new Catalog();
  #pictures;
  #grid;
  #filter = "all";
  #etag = null;
  #body = null;
  #visible = false;
  #timer = 0;
  #polling = null;
  #scroll = 0;
  #opened = null;

  constructor(api, { onSignOut }) {
    this.#api = api;
    this.#onSignOut = onSignOut;
    this.#pictures = new Pictures(api);
    this.#grid = new Grid(byId("grid"), {
      build: buildCard,
      fill: (card, item) => this.#fill(card, item),
      release: (card) => this.#pictures.forget(card.querySelector("img")),
    });
    this.#wire();
  }

  show() {
    document.title = "ether";
    this.#visible = true;
    byId("library").hidden = false;
    this.#select();
    scrollTo({ top: this.#scroll, behavior: "instant" });
    if (this.#opened !== null) this.#grid.focus(this.#opened);
    this.#opened = null;
    this.#poll();
  }

  hide() {
    this.#visible = false;
    byId("library").hidden = true;
    byId("menu").open = false;
    clearTimeout(this.#timer);
    this.#polling?.abort();
    this.#polling = null;
    this.#pictures.rest();
  }

  /** The player has kept a position; the cards say so without asking the server again. */
  notePosition(id, positionMs, finished) {
    const item = this.#catalog.get(id);
    if (!item) return;
    Object.assign(item, { positionMs, finished });
    this.#grid.refresh(item);
  }

  #wire() {
    const chips = byId("chips");
    for (const { id, name } of FILTERS) {
      const input = el("input", { type: "radio", name: "filter", value: id, id: `filter-${id}`, checked: id === this.#filter });
      input.addEventListener("change", () => {
        this.#filter = id;
        this.#select(true);
      });
      chips.append(el("label", { class: "chip", for: input.id }, input, el("span", { text: name })));
    }
    byId("search").addEventListener("input", () => this.#select(true));
    byId("search").addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.currentTarget.value = "";
      this.#select(true);
    });
    byId("sort").addEventListener("change", () => this.#select(true));
    byId("scan").addEventListener("click", () => this.#scan());
    byId("empty-action").addEventListener("click", () => this.#clearSieve());
    byId("sign-out").addEventListener("click", () => {
      this.#pictures.clear();
      this.#catalog.replace([]);
      this.#etag = null;
      this.#body = null;
      this.#scroll = 0;
      this.#onSignOut();
    });
    byId("show-keys-library").addEventListener("click", () => {
      byId("menu").open = false;
      byId("keys-dialog").showModal();
    });
    byId("library").addEventListener("click", (event) => {
      const card = event.target.closest("a[data-id]");
      if (card) this.#opened = card.dataset.id;
      if (!event.target.closest("#menu")) byId("menu").open = false;
    });
    addEventListener("scroll", () => {
      if (this.#visible) this.#scroll = scrollY;
    }, { passive: true });
    addEventListener("keydown", (event) => {
      if (!this.#visible || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.key === "Escape" && byId("menu").open) {
        byId("menu").open = false;
        byId("menu").querySelector("summary").focus();
      } else if (event.key === "/" && !isTyping(event.target)) {
        event.preventDefault();
        byId("search").focus();
        byId("search").select();
      } else if (event.key === "?" && !isTyping(event.target)) {
        byId("keys-dialog").showModal();
      }
    });
    addEventListener("visibilitychange", () => {
      if (this.#visible && document.visibilityState === "visible") this.#poll();
    });
    addEventListener("online", () => {
      if (this.#visible) this.#poll();
    });
  }

  async #poll() {
    clearTimeout(this.#timer);
    this.#polling?.abort();
    const polling = new AbortController();
    this.#polling = polling;
    const asked = performance.now();
    let again = QUIET_MS;
    try {
      const answer = await this.#api.library(this.#etag, polling.signal);
      if (answer !== null) this.#take(answer);
      this.#notice("");
      // A large library over a slow line must not be asked for all the time.
      if (this.#body?.scanning) again = Math.max(SCANNING_MS, (performance.now() - asked) * 4);
    } catch (error) {
      if (polling.signal.aborted) return;
      this.#notice(explain(error).sentence);
      again = error.unreachable ? 3_000 : QUIET_MS;
    }
    if (this.#visible && this.#polling === polling && document.visibilityState === "visible") {
      this.#timer = setTimeout(() => this.#poll(), again);
    }
  }

  #take({ etag, body }) {
    const wasScanning = this.#body?.scanning ?? false;
    this.#etag = etag;
    this.#body = body;
    this.#catalog.replace(body.items ?? []);
    this.#pictures.reconsider();
    this.#showScan(body);
    this.#showFolders(body.folders ?? []);
    this.#showProblems(body.problems ?? []);
    this.#select();
    if (wasScanning && !body.scanning) say(`Scan finished. ${plural(this.#catalog.size, "item")} in the library.`);
  }

  async #scan() {
    byId("menu").open = false;
    try {
      await this.#api.scan();
      say("Looking for new files.");
      this.#poll();
    } catch (error) {
      this.#notice(explain(error).sentence);
    }
  }

  #notice(sentence) {
    const notice = byId("notice");
    // Set only when it changes, so that it is read out once and not at every poll.
    if (notice.textContent !== sentence) notice.textContent = sentence;
    notice.hidden = sentence === "";
  }

  #clearSieve() {
    byId("search").value = "";
    this.#filter = "all";
    byId("filter-all").checked = true;
    this.#select(true);
    byId("search").focus();
  }

  /** `fromTop`: the list is another one now, so its beginning is what there is to see. */
  #select(fromTop = false) {
    if (!this.#visible) return;
    const query = byId("search").value;
    const items = this.#catalog.select({ query, filter: this.#filter, sort: byId("sort").value });
    const counts = this.#catalog.counts();
    for (const { id } of FILTERS) {
      // A kind that this library does not have needs no button.
      byId(`filter-${id}`).parentElement.hidden = id !== "all" && id !== this.#filter && (counts[id] === 0 || counts[id] === counts.all);
    }
    const plainView = query === "" && this.#filter === "all";
    this.#showContinue(plainView ? this.#catalog.begun(CONTINUE_SHOWN) : []);
    byId("count").textContent = this.#body === null ? "Loading…" : items.length === 0 ? "" : plural(items.length, "title");
    this.#grid.show(items);
    this.#showEmpty(items.length === 0, query);
    if (fromTop && scrollY > 0) scrollTo({ top: 0, behavior: "instant" });
  }

  #showEmpty(isEmpty, query) {
    const show = isEmpty && this.#body !== null;
    byId("empty").hidden = !show;
    if (!show) return;
    const sieved = this.#catalog.size > 0;
    byId("empty-action").hidden = !sieved;
    byId("empty-action").textContent = "Show everything";
    if (sieved) {
      byId("empty-title").textContent = "Nothing fits";
      byId("empty-words").textContent = query ? `No title, file or folder has “${query}” in it.` : "There is nothing of this kind.";
    } else if (this.#body.scanning) {
      byId("empty-title").textContent = "Looking through the folders";
      byId("empty-words").textContent = "Films appear here as they are found.";
    } else {
      byId("empty-title").textContent = "No films yet";
      byId("empty-words").textContent = "Put films into the folder that the server was started with; they appear here by themselves.";
    }
  }

  #showScan({ scanning, progress }) {
    byId("scan-progress").hidden = !scanning;
    byId("scan").disabled = Boolean(scanning);
    if (!scanning) return;
    const seen = progress?.seen ?? 0;
    const done = progress?.done ?? 0;
    const bar = byId("scan-bar");
    if (seen > 0) {
      bar.max = seen;
      bar.value = done;
    } else {
      bar.removeAttribute("value");
    }
    byId("scan-words").textContent = seen > 0 ? `Reading files: ${done.toLocaleString()} of ${seen.toLocaleString()}` : "Looking for files…";
  }

  #showFolders(folders) {
    const broken = folders.filter((folder) => folder.state !== "ok");
    byId("folder-notices").replaceChildren(...broken.map((folder) => el("div", { class: "notice", role: "alert" },
      el("strong", { text: folder.path ?? folder.name }),
      el("span", {
        text: folder.state === "missing"
          ? " is not there. Its titles are kept until it comes back: plug in or mount it again."
          : " cannot be read. Let the account that the server runs under read it.",
      }),
      folder.reason ? el("span", { class: "notice-detail", text: folder.reason }) : null,
    )));
  }

  #showProblems(problems) {
    byId("problems").hidden = problems.length === 0;
    byId("problems-title").textContent = `${plural(problems.length, "file")} could not be used`;
    const rows = problems.slice(0, PROBLEMS_SHOWN).map((problem) => el("li", {},
      el("bdi", { class: "problem-file", text: problem.file }),
      problem.folder ? el("bdi", { class: "problem-folder", text: problem.folder }) : null,
      el("span", { class: "problem-reason", text: problem.reason ?? problem.code }),
    ));
    if (problems.length > PROBLEMS_SHOWN) rows.push(el("li", { text: `and ${problems.length - PROBLEMS_SHOWN} more` }));
    byId("problems-list").replaceChildren(...rows);
  }

  #showContinue(items) {
    byId("continue").hidden = items.length === 0;
    const row = byId("continue-row");
    for (const img of row.querySelectorAll("img")) this.#pictures.forget(img);
    row.replaceChildren(...items.map((item) => {
      const card = buildCard();
      this.#fill(card, item);
      return card;
    }));
  }

  #fill(card, item) {
    const link = card.querySelector("a");
    link.href = `#/watch/${encodeURIComponent(item.id)}`;
    link.dataset.id = item.id;
    const seconds = (item.durationMs ?? 0) / 1000;
    const seen = seenPart(item);
    const isMusic = item.kind === "music";
    card.classList.toggle("music", isMusic);
    card.querySelector(".name").textContent = item.title;
    const facts = isMusic ? [codecName(item.audio)] : [definition(item.width, item.height), codecName(item.video)];
    card.querySelector(".meta").textContent = facts.filter(Boolean).join(" · ");
    const length = card.querySelector(".length");
    length.textContent = seconds > 0 ? clock(seconds) : "";
    length.hidden = seconds <= 0;
    card.querySelector(".done").hidden = !item.finished;
    const bar = card.querySelector(".seen");
    bar.hidden = seen === 0 || item.finished;
    bar.firstElementChild.style.setProperty("--part", seen);
    const blank = card.querySelector(".blank");
    blank.textContent = [...(item.title || "?").trim()][0]?.toUpperCase() ?? "?";
    blank.dataset.tint = tint(item.id);
    const watched = item.finished ? ", watched" : seen > 0.01 ? `, ${Math.round(seen * 100)} percent watched` : "";
    link.setAttribute("aria-label", `${item.title}${seconds > 0 ? `, ${roughLength(seconds)}` : ""}${watched}`);
    link.title = item.file ?? "";
    const img = card.querySelector("img");
    if (img.dataset.path !== item.picture) this.#pictures.watch(img, item.picture);
  }
}

function buildCard() {
  return byId("card-template").content.firstElementChild.cloneNode(true);
}

/** One of six quiet colours, the same for an item every time. */
function tint(id) {
  let sum = 0;
  for (const letter of String(id)) sum = (sum * 31 + letter.codePointAt(0)) % 6007;
  return sum % 6;
}
