// Pictures need the token, which an <img> cannot send: they are fetched when they come near the window, shown
// as blob addresses, and given back when there are too many.

/** More requests than this at once would keep a film's own requests waiting on HTTP/1.1. */
const AT_ONCE = 4;
/** Pictures kept in memory after they have left the window. */
const KEPT = 300;
/** A picture that could not be had is asked for again after this, where the server names no time. */
const RETRY_SECONDS = 4;

export class Pictures {
  #api;
  #observer;
  #wanted = new Map(); // img -> path, near the window and not yet asked for
  #running = new Map(); // img -> AbortController
  #urls = new Map(); // path -> blob address; the oldest use first
  #absent = new Set(); // paths that have no picture

  constructor(api) {
    this.#api = api;
    this.#observer = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "300px" });
  }

  /** Shows the picture at `path` in `img` once it comes near the window. A falsy path shows none. */
  watch(img, path) {
    this.forget(img);
    img.removeAttribute("src");
    if (!path || this.#absent.has(path)) return;
    img.dataset.path = path;
    const known = this.#urls.get(path);
    if (known) this.#place(img, path, known);
    else this.#observer.observe(img);
  }

  /** The element is going away or will show something else. */
  forget(img) {
    this.#observer.unobserve(img);
    this.#wanted.delete(img);
    this.#running.get(img)?.abort();
    this.#running.delete(img);
    delete img.dataset.path;
  }

  /** The cards are out of sight: the connections are the player's now. What is missing is asked for on return. */
  rest() {
    this.#wanted.clear();
    for (const controller of this.#running.values()) controller.abort();
  }

  /** The library has changed: what had no picture may have one now. */
  reconsider() {
    this.#absent.clear();
  }

  /** After a sign-out nothing of the library stays in memory. */
  clear() {
    for (const url of this.#urls.values()) URL.revokeObjectURL(url);
    this.#urls.clear();
    this.#absent.clear();
  }

  #seen(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && target.dataset.path) {
        this.#wanted.set(target, target.dataset.path);
      } else {
        // Scrolled past before its turn: those now in the window go first.
        this.#wanted.delete(target);
      }
    }
    this.#pump();
  }

  #pump() {
    while (this.#running.size < AT_ONCE && this.#wanted.size > 0) {
      const [img, path] = this.#wanted.entries().next().value;
      this.#wanted.delete(img);
      this.#load(img, path);
    }
  }

  async #load(img, path) {
    const controller = new AbortController();
    this.#running.set(img, controller);
    try {
      const url = this.#urls.get(path) ?? URL.createObjectURL(await this.#api.picture(path, controller.signal));
      this.#remember(path, url);
      if (img.dataset.path === path) this.#place(img, path, url);
    } catch (error) {
      if (error.status === 404) {
        this.#absent.add(path);
        this.#observer.unobserve(img);
      } else if (!controller.signal.aborted) {
        this.#later(img, path, error.retryAfter ?? RETRY_SECONDS);
      }
    } finally {
      if (this.#running.get(img) === controller) this.#running.delete(img);
      this.#pump();
    }
  }

  /** Still being made, or the server is not there: asked for again if it is still wanted then. */
  #later(img, path, seconds) {
    setTimeout(() => {
      if (img.dataset.path !== path || !img.isConnected) return;
      this.#observer.unobserve(img);
      this.#observer.observe(img);
    }, seconds * 1000);
  }

  #place(img, path, url) {
    this.#observer.unobserve(img);
    this.#remember(path, url);
    img.src = url;
  }

  #remember(path, url) {
    const old = this.#urls.get(path);
    if (old && old !== url) URL.revokeObjectURL(old);
    this.#urls.delete(path);
    this.#urls.set(path, url);
    for (const [oldest, address] of this.#urls) {
      if (this.#urls.size <= KEPT) break;
      this.#urls.delete(oldest);
      // An <img> that already shows it keeps its decoded picture.
      URL.revokeObjectURL(address);
    }
  }
}
