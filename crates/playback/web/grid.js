// A grid of ten thousand cards of which only those near the window exist. Cards are placed by row and column,
// reused by item, and kept in reading order in the document, so that Tab goes where the eye goes.

/** Rows kept above and below the window: a flick of the wheel finds cards, not blanks. */
const SPARE_ROWS = 3;

export class Grid {
  #list;
  #build;
  #fill;
  #release;
  #items = [];
  #cards = new Map(); // item id -> li
  #columns = 1;
  #rowHeight = 0;
  #frame = 0;

  /**
   * `list`: the <ul>. `build()` makes an empty <li>, `fill(li, item)` shows an item in it, `release(li)` is
   * called before it goes away.
   */
  constructor(list, { build, fill, release }) {
    this.#list = list;
    this.#build = build;
    this.#fill = fill;
    this.#release = release;
    new ResizeObserver(() => this.#measure()).observe(list);
    addEventListener("scroll", () => this.#soon(), { passive: true });
    addEventListener("resize", () => this.#soon(), { passive: true });
    list.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Shows these items; cards of items that stay are kept, focus included. */
  show(items) {
    this.#items = items;
    const kept = new Set(items.map((item) => item.id));
    for (const [id, card] of this.#cards) if (!kept.has(id)) this.#drop(id, card);
    this.#measure(true);
  }

  /** Fills an item's card again, if it has one. */
  refresh(item) {
    const card = this.#cards.get(item.id);
    if (card) this.#fill(card, item);
    const index = this.#items.findIndex((each) => each.id === item.id);
    if (index >= 0) this.#items[index] = item;
  }

  /** Scrolls to an item's card and focuses it; false if the item is not shown. */
  focus(id) {
    const index = this.#items.findIndex((item) => item.id === id);
    if (index < 0) return false;
    this.#focusIndex(index, false);
    return true;
  }

  #soon() {
    if (this.#frame || this.#list.offsetParent === null) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#render(false);
    });
  }

  #measure(refill = false) {
    const width = this.#list.clientWidth;
    if (width === 0) return;
    const style = getComputedStyle(this.#list);
    const least = Number.parseFloat(style.getPropertyValue("--card-least")) || 160;
    const gap = Number.parseFloat(style.getPropertyValue("--card-gap")) || 16;
    const words = Number.parseFloat(style.getPropertyValue("--card-words")) || 60;
    const columns = Math.max(2, Math.floor((width + gap) / (least + gap)));
    const cardWidth = (width - gap * (columns - 1)) / columns;
    this.#columns = columns;
    this.#rowHeight = Math.round((cardWidth * 9) / 16 + words + gap);
    this.#list.style.setProperty("--columns", columns);
    this.#list.style.setProperty("--row-height", `${this.#rowHeight}px`);
    this.#list.style.setProperty("--rows", Math.ceil(this.#items.length / columns));
    this.#render(refill);
  }

  #range() {
    const top = this.#list.getBoundingClientRect().top;
    const first = Math.floor(-top / this.#rowHeight) - SPARE_ROWS;
    const last = Math.ceil((innerHeight - top) / this.#rowHeight) + SPARE_ROWS;
    const from = Math.max(0, first * this.#columns);
    return [from, Math.max(from, Math.min(this.#items.length, last * this.#columns))];
  }

  #render(refill) {
    if (this.#rowHeight === 0) return;
    const [from, to] = this.#range();
    const wanted = new Map();
    for (let index = from; index < to; index += 1) wanted.set(this.#items[index].id, index);
    // The focused card stays wherever it is scrolled to, or the keyboard would lose its place.
    const focused = document.activeElement?.closest?.(".grid > li");
    for (const [id, card] of this.#cards) {
      if (wanted.has(id) || card === focused) continue;
      this.#drop(id, card);
    }
    let next = this.#list.firstElementChild;
    for (const [id, index] of wanted) {
      let card = this.#cards.get(id);
      const isNew = card === undefined;
      if (isNew) {
        card = this.#build();
        this.#cards.set(id, card);
      }
      if (isNew || refill) this.#fill(card, this.#items[index]);
      this.#place(card, index);
      if (next === card) {
        next = card.nextElementSibling;
      } else if (card !== focused) {
        // Moving the focused card would blur it; its neighbours are moved around it instead.
        this.#list.insertBefore(card, next);
      } else {
        next = card.nextElementSibling;
      }
    }
  }

  #place(card, index) {
    card.style.setProperty("--row", Math.floor(index / this.#columns));
    card.style.setProperty("--column", index % this.#columns);
    card.setAttribute("aria-posinset", index + 1);
    card.setAttribute("aria-setsize", this.#items.length);
    card.dataset.index = index;
  }

  #drop(id, card) {
    this.#release(card);
    card.remove();
    this.#cards.delete(id);
  }

  /** Arrows walk the grid as it looks. */
  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const card = event.target.closest("li");
    if (!card) return;
    const index = Number(card.dataset.index);
    const last = this.#items.length - 1;
    const page = this.#columns * Math.max(1, Math.floor(innerHeight / this.#rowHeight) - 1);
    const target = {
      ArrowRight: index + 1,
      ArrowLeft: index - 1,
      ArrowDown: index + this.#columns,
      ArrowUp: index - this.#columns,
      PageDown: Math.min(last, index + page),
      PageUp: Math.max(0, index - page),
      Home: 0,
      End: last,
    }[event.key];
    if (target === undefined || target < 0 || target > last) return;
    event.preventDefault();
    this.#focusIndex(target, true);
  }

  #focusIndex(index, smooth) {
    const top = this.#list.getBoundingClientRect().top + scrollY + Math.floor(index / this.#columns) * this.#rowHeight;
    const header = Number.parseFloat(getComputedStyle(this.#list).scrollMarginTop) || 0;
    const still = !smooth || matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (top - header < scrollY || top + this.#rowHeight > scrollY + innerHeight) {
      const near = Math.abs(top - scrollY) < innerHeight * 2;
      scrollTo({
        top: top - header < scrollY ? top - header : top + this.#rowHeight - innerHeight + 16,
        behavior: still || !near ? "instant" : "smooth",
      });
    }
    // Its card may not exist yet: a smooth scroll has only begun, so it is made and placed here.
    const { id } = this.#items[index];
    if (!this.#cards.has(id)) {
      this.#render(false);
      if (!this.#cards.has(id)) {
        const card = this.#build();
        this.#cards.set(id, card);
        this.#fill(card, this.#items[index]);
        this.#place(card, index);
        this.#list.append(card);
      }
    }
    this.#cards.get(id).querySelector("a").focus({ preventScroll: true });
  }
}
