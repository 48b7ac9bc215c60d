// One playback on the server, from asking for it to ending it, and the position that outlives it.

import { randomKey } from "./api.js";

/** The server ends a playback that nobody reports on; a paused one is reported on too. */
const REPORT_MS = 10_000;
/** While playing, the position is kept this often. */
const KEEP_MS = 10_000;

/** Asks for a playback; a lost answer is asked for again under the same key, so that only one is made. */
export async function openPlayback(api, request, signal) {
  const key = randomKey();
  try {
    return new Playback(api, await api.createSession(request, key, signal));
  } catch (error) {
    if (!error.unreachable || signal.aborted) throw error;
    return new Playback(api, await api.createSession(request, key, signal));
  }
}

export class Playback {
  #api;
  #timer = 0;
  #ended = false;

  constructor(api, { id, url, decision, durationMs, subtitles }) {
    this.#api = api;
    this.id = id;
    this.url = url;
    this.decision = decision ?? {};
    this.durationMs = durationMs;
    /** The text tracks that can be shown, in the order of its playlist. */
    this.subtitles = subtitles ?? [];
    /** The server no longer knows it: playing on needs a new one. */
    this.lost = false;
  }

  get isFile() {
    return this.decision.mode === "direct";
  }

  /** Says at once, and from then on now and then, what the viewer does. `now()` gives `{ state, positionMs }`. */
  reportOn(now) {
    clearInterval(this.#timer);
    const report = async () => {
      if (this.#ended) return;
      const { state, positionMs } = now();
      try {
        await this.#api.reportState(this.id, state, positionMs);
      } catch (error) {
        if (error.status === 404 || error.status === 410) this.lost = true;
      }
    };
    this.#timer = setInterval(report, REPORT_MS);
    report();
  }

  /** What the server says about it now. */
  look(signal) {
    return this.#api.session(this.id, signal);
  }

  /** Ends it; a second call, or a lost connection, changes nothing. */
  async end({ leaving = false } = {}) {
    clearInterval(this.#timer);
    if (this.#ended) return;
    this.#ended = true;
    try {
      await this.#api.endSession(this.id, { leaving });
    } catch {
      // Unreachable, or gone already: the server ends an abandoned playback by itself.
    }
  }
}

/** Keeps one item's position on the server: never two writes at once, the latest always wins. */
export class PositionKeeper {
  #api;
  #id;
  #onKept;
  #kept = null;
  #wanted = null;
  #writing = false;
  #lastWrite = 0;

  constructor(api, id, onKept) {
    this.#api = api;
    this.#id = id;
    this.#onKept = onKept;
  }

  /** Called as often as the picture moves. */
  tick(positionMs, now) {
    if (now - this.#lastWrite < KEEP_MS) return;
    this.#lastWrite = now;
    this.keep(positionMs, false);
  }

  keep(positionMs, finished, { leaving = false } = {}) {
    const next = { positionMs: Math.round(positionMs), finished };
    if (this.#kept && this.#kept.positionMs === next.positionMs && this.#kept.finished === finished) return;
    this.#onKept(this.#id, next.positionMs, finished);
    if (leaving) {
      this.#api.keepPosition(this.#id, next.positionMs, finished, { leaving }).catch(() => {});
      return;
    }
    this.#wanted = next;
    if (!this.#writing) this.#write();
  }

  async #write() {
    this.#writing = true;
    while (this.#wanted) {
      const next = this.#wanted;
      this.#wanted = null;
      try {
        await this.#api.keepPosition(this.#id, next.positionMs, next.finished);
        this.#kept = next;
      } catch {
        // The next tick, pause or stop tries again with a newer position.
      }
    }
    this.#writing = false;
  }
}
