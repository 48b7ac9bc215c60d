// What lies over the picture while there is none: a curtain with words and buttons, the spinner, and the last
// frame of the playback before.

import { byId, el } from "./dom.js";

export class Curtain {
  #video;

  constructor(video) {
    this.#video = video;
  }

  get isOpen() {
    return !byId("curtain").hidden;
  }

  /** `actions`: pairs of a name and what it does; the first is the obvious one, and gets the focus. */
  show({ title, words = "", detail = "", actions, isProblem = false }) {
    byId("curtain").classList.toggle("is-problem", isProblem);
    byId("curtain-title").textContent = title;
    byId("curtain-words").textContent = words;
    byId("curtain-words").hidden = words === "";
    byId("curtain-detail").textContent = detail;
    byId("curtain-detail").hidden = detail === "";
    const buttons = actions.map(([name, act], n) =>
      el("button", { type: "button", class: n === 0 ? "button primary" : "button", text: name, on: { click: () => act() } }));
    byId("curtain-actions").replaceChildren(...buttons);
    this.#open(true);
    buttons[0]?.focus({ preventScroll: true });
  }

  hide() {
    this.#open(false);
  }

  /** Does what the first button does. */
  pressFirst() {
    byId("curtain-actions").querySelector("button")?.click();
  }

  /** Shows the spinner with these words; null hides it. Behind an open curtain there is none. */
  wait(words) {
    const shown = words !== null && !this.isOpen;
    byId("spinner").hidden = !shown;
    if (shown) byId("spinner-words").textContent = words;
  }

  /** Changes the spinner's words, whether it is seen or not. */
  waitingFor(words) {
    byId("spinner-words").textContent = words;
  }

  get waitingWords() {
    return byId("spinner-words").textContent;
  }

  /** Keeps the frame that is shown now on screen until `releaseFrame`. */
  holdFrame() {
    const canvas = byId("held-frame");
    if (this.#video.videoWidth === 0) return;
    canvas.width = this.#video.videoWidth;
    canvas.height = this.#video.videoHeight;
    try {
      canvas.getContext("2d").drawImage(this.#video, 0, 0);
      canvas.hidden = false;
    } catch {
      canvas.hidden = true;
    }
  }

  releaseFrame() {
    byId("held-frame").hidden = true;
  }

  #open(open) {
    byId("curtain").hidden = !open;
    // What lies behind it is not seen, so the keyboard must not get there either.
    byId("controls").inert = open;
    if (open) byId("spinner").hidden = true;
  }
}
