// The bar under the picture, the keys, and full screen. Knows nothing of servers: it drives whatever offers
// `position`, `duration`, `paused`, `togglePlay`, `seek`, `openTune`, `leave`.

import { byId, isTyping, setIcon } from "./dom.js";
import { clock, spokenClock } from "./format.js";

const IDLE_MS = 2_600;
/** Keys come in bursts, and every seek may restart an encoder: only where the burst ends is asked for. */
const SEEK_SETTLE_MS = 220;
const VOLUME = "ether.volume";

export class Controls {
  #video;
  #player;
  #stage = byId("stage");
  #seek = byId("seek");
  #tip = byId("seek-tip");
  #dragging = false;
  #target = null;
  #settle = 0;
  #idle = 0;
  #flash = 0;
  #active = false;

  constructor(video, player) {
    this.#video = video;
    this.#player = player;
    this.#restoreVolume();
    this.#wireButtons();
    this.#wireSeek();
    this.#wireStage();
    this.#wireVideo();
    addEventListener("keydown", (event) => this.#key(event));
    this.#showVolume();
  }

  /** The player is on screen, or has left it. */
  set active(active) {
    this.#active = active;
    this.#target = null;
    clearTimeout(this.#settle);
    clearTimeout(this.#idle);
    this.#stage.classList.remove("is-idle");
    if (!active && document.fullscreenElement) document.exitFullscreen().catch(() => {});
    this.update();
  }

  /** Shows the current position, length and state. */
  update() {
    const { duration, position, paused } = this.#player;
    const at = this.#target ?? position;
    if (!this.#dragging) {
      this.#seek.max = duration.toFixed(1);
      this.#seek.value = at;
      this.#showPosition(at, duration);
    }
    this.#seek.disabled = duration <= 0;
    byId("time-all").textContent = clock(duration);
    byId("seek-buffered").style.setProperty("--part", duration > 0 ? Math.min(1, this.#bufferedTo(position) / duration) : 0);
    const play = byId("play");
    setIcon(play, paused ? "play" : "pause");
    play.setAttribute("aria-label", paused ? "Play" : "Pause");
    if (paused) this.#wake();
  }

  /** Back or forward from where the last key led. */
  seekBy(seconds) {
    this.#seekSoon((this.#target ?? this.#player.position) + seconds);
    this.#blink(seconds < 0 ? `− ${Math.abs(seconds)} s` : `+ ${seconds} s`);
  }

  #seekSoon(seconds) {
    if (this.#player.duration <= 0) return;
    this.#target = Math.max(0, Math.min(this.#player.duration, seconds));
    this.update();
    this.#wake();
    clearTimeout(this.#settle);
    this.#settle = setTimeout(() => {
      const target = this.#target;
      this.#target = null;
      this.#player.seek(target);
    }, SEEK_SETTLE_MS);
  }

  #showPosition(at, duration) {
    byId("time-now").textContent = clock(at);
    byId("seek-done").style.setProperty("--part", duration > 0 ? Math.min(1, at / duration) : 0);
    this.#seek.setAttribute("aria-valuetext", `${spokenClock(at)} of ${spokenClock(duration)}`);
  }

  #bufferedTo(position) {
    const { buffered } = this.#video;
    for (let i = 0; i < buffered.length; i += 1) {
      if (buffered.start(i) <= position + 0.5 && buffered.end(i) >= position) return buffered.end(i);
    }
    return position;
  }

  #wireButtons() {
    const press = {
      play: () => this.#player.togglePlay(),
      rewind: () => this.seekBy(-10),
      forward: () => this.seekBy(10),
      mute: () => this.#toggleMute(),
      full: () => this.#toggleFull(),
      tune: () => this.#player.openTune(),
      how: () => this.#player.openTune(),
    };
    for (const [id, act] of Object.entries(press)) {
      byId(id).addEventListener("click", (event) => {
        act();
        // After the mouse the keys are the player's again; Space must not press the same button once more.
        if (event.detail > 0) byId(id).blur();
      });
    }
    byId("volume").addEventListener("input", (event) => this.#setVolume(Number(event.currentTarget.value) / 100));
    document.addEventListener("fullscreenchange", () => {
      const full = document.fullscreenElement !== null;
      setIcon(byId("full"), full ? "unfull" : "full");
      byId("full").setAttribute("aria-label", full ? "Leave full screen" : "Full screen");
    });
  }

  #wireSeek() {
    this.#seek.addEventListener("input", () => {
      this.#dragging = true;
      this.#showPosition(Number(this.#seek.value), this.#player.duration);
    });
    this.#seek.addEventListener("change", () => {
      this.#dragging = false;
      this.#player.seek(Number(this.#seek.value));
    });
    const track = this.#seek.parentElement;
    track.addEventListener("pointermove", (event) => {
      const box = track.getBoundingClientRect();
      const part = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
      this.#tip.hidden = this.#player.duration <= 0;
      this.#tip.textContent = clock(part * this.#player.duration);
      this.#tip.style.setProperty("--part", part);
    });
    track.addEventListener("pointerleave", () => { this.#tip.hidden = true; });
  }

  #wireStage() {
    this.#stage.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") this.#wake();
    });
    this.#stage.addEventListener("focusin", () => this.#wake());
    this.#stage.addEventListener("click", (event) => {
      if (event.target !== this.#video && event.target !== byId("cover")) return;
      // A finger first brings the controls up; a mouse has them already.
      if (event.pointerType === "touch") {
        if (this.#stage.classList.contains("is-idle")) this.#wake();
        else this.#rest();
      } else {
        this.#player.togglePlay();
      }
    });
    this.#stage.addEventListener("dblclick", (event) => {
      if (event.target === this.#video || event.target === byId("cover")) this.#toggleFull();
    });
  }

  #wireVideo() {
    for (const name of ["timeupdate", "durationchange", "progress", "play", "pause", "seeking", "seeked", "loadedmetadata", "emptied"]) {
      this.#video.addEventListener(name, () => {
        if (this.#active) this.update();
      });
    }
    this.#video.addEventListener("playing", () => this.#wake());
    this.#video.addEventListener("volumechange", () => this.#showVolume());
  }

  #wake() {
    this.#stage.classList.remove("is-idle");
    clearTimeout(this.#idle);
    this.#idle = setTimeout(() => this.#rest(), IDLE_MS);
  }

  #rest() {
    if (!this.#active || this.#player.paused || this.#dragging) return;
    // Someone is at the controls with the keyboard.
    if (this.#stage.querySelector(":focus-visible:not(video)")) return;
    this.#stage.classList.add("is-idle");
  }

  #toggleMute() {
    if (this.#video.volume === 0) this.#setVolume(0.5);
    else this.#video.muted = !this.#video.muted;
    this.#blink(this.#video.muted ? "Sound off" : "Sound on");
  }

  #setVolume(volume) {
    const bounded = Math.max(0, Math.min(1, volume));
    this.#video.volume = bounded;
    this.#video.muted = bounded === 0;
  }

  #showVolume() {
    const heard = this.#video.muted ? 0 : this.#video.volume;
    setIcon(byId("mute"), heard === 0 ? "silent" : "sound");
    byId("mute").setAttribute("aria-label", heard === 0 ? "Sound on" : "Mute");
    byId("volume").value = Math.round(heard * 100);
    byId("volume").style.setProperty("--part", heard);
    try {
      localStorage.setItem(VOLUME, JSON.stringify({ volume: this.#video.volume, muted: this.#video.muted }));
    } catch {
      // Not kept for the next visit.
    }
  }

  #restoreVolume() {
    try {
      const kept = JSON.parse(localStorage.getItem(VOLUME) ?? "null");
      if (Number.isFinite(kept?.volume)) this.#video.volume = Math.max(0, Math.min(1, kept.volume));
      this.#video.muted = kept?.muted === true;
    } catch {
      // As loud as the browser has it.
    }
  }

  #toggleFull() {
    if (document.fullscreenElement) {
      document.exitFullscreen().catch(() => {});
    } else if (this.#stage.requestFullscreen) {
      this.#stage.requestFullscreen().catch(() => {});
    } else {
      // Phones that only let the video itself fill the screen.
      this.#video.webkitEnterFullscreen?.();
    }
  }

  /** A word in the middle of the picture that fades by itself. */
  #blink(word) {
    const flash = byId("flash");
    flash.textContent = word;
    flash.classList.remove("is-on");
    // Read, so that the same word twice fades twice.
    void flash.offsetWidth;
    flash.classList.add("is-on");
    clearTimeout(this.#flash);
    this.#flash = setTimeout(() => flash.classList.remove("is-on"), 700);
  }

  #key(event) {
    if (!this.#active || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const { target, key } = event;
    const pressable = target instanceof Element && target.closest("button, a, summary");
    if (pressable && (key === " " || key === "Enter")) return;
    const onVolume = target === byId("volume");
    const act = {
      " ": () => this.#player.togglePlay(),
      k: () => this.#player.togglePlay(),
      j: () => this.seekBy(-10),
      l: () => this.seekBy(10),
      ArrowLeft: onVolume ? null : () => this.seekBy(-5),
      ArrowRight: onVolume ? null : () => this.seekBy(5),
      ArrowUp: () => this.#louder(0.05),
      ArrowDown: () => this.#louder(-0.05),
      Home: () => this.#seekSoon(0),
      End: () => this.#seekSoon(this.#player.duration - 5),
      m: () => this.#toggleMute(),
      f: () => this.#toggleFull(),
      i: () => this.#player.openTune(),
      "?": () => byId("keys-dialog").showModal(),
      // The browser itself leaves full screen on this key.
      Escape: () => { if (!document.fullscreenElement) this.#player.leave(); },
    }[key.length === 1 ? key.toLowerCase() : key];
    if (act) {
      event.preventDefault();
      act();
      this.#wake();
    } else if (/^[0-9]$/.test(key)) {
      event.preventDefault();
      this.#seekSoon((this.#player.duration * Number(key)) / 10);
    }
  }

  #louder(step) {
    this.#setVolume((this.#video.muted ? 0 : this.#video.volume) + step);
    this.#blink(`Volume ${Math.round(this.#video.volume * 100)}`);
    this.#wake();
  }
}
