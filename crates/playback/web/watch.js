// Watching one item: opens a playback, puts it into the <video>, keeps the position, and says what to do when
// something fails. One visit = one item on screen; whatever answers after the visit is over is dropped.

import { abilities } from "./abilities.js";
import { ApiError } from "./api.js";
import { isBegun } from "./catalog.js";
import { Controls } from "./controls.js";
import { Curtain } from "./curtain.js";
import { decisionElements, modeWords, showItem } from "./details.js";
import { byId, say } from "./dom.js";
import { attach, choosePlayer } from "./engine.js";
import { Mend, explain } from "./errors.js";
import { clock, spokenClock } from "./format.js";
import { nameForMediaKeys, wireMediaKeys } from "./media-keys.js";
import { openPlayback, PositionKeeper } from "./playback.js";
import { keepSubtitle, wantedSubtitle } from "./subtitles.js";
import { qualities, TuneDialog } from "./tune.js";

/** Unreachable servers are tried again this often, and this many times before the picture is given up. */
const RETRY_MS = 2_000;
const RETRIES_UNSEEN = 10;
/** Ending this much before the length the file claims is said to be early. */
const EARLY_SECONDS = 3;

export class WatchView {
  #api;
  #onPosition;
  #video = byId("video");
  #curtain;
  #controls;
  #tune;
  #visit = null; // { id, controller }: ends everything that belongs to it
  #playback = null;
  #engine = null;
  #engineName = "";
  #keeper = null;
  #at = 0; // where the viewer is, or wants to be once there is a picture
  #started = false; // a picture of this playback has been shown
  #wantsPlay = false;
  #doom = null; // a failure that the picture has not come to yet
  #retries = 0;
  #ladder = []; // the qualities that were last offered together: their names stay good for the next playback
  #gaveUp = false; // the curtain says that the server cannot be reached
  #retryTimer = 0;

  item = null;
  quality = "auto";
  /** The chosen track's index; null leaves the choice to the server. */
  audio = null;
  /** The number of the subtitle track that is shown; null for none. */
  subtitle = null;

  constructor(api, { onPosition }) {
    this.#api = api;
    this.#onPosition = onPosition;
    this.#curtain = new Curtain(this.#video);
    this.#controls = new Controls(this.#video, this);
    this.#tune = new TuneDialog(this);
    this.#wire();
  }

  async show(id) {
    this.#endVisit();
    const controller = new AbortController();
    this.#visit = { id, controller };
    byId("watch").hidden = false;
    scrollTo({ top: 0, behavior: "instant" });
    this.#reset();
    this.#controls.active = true;
    this.#curtain.wait("Opening…");
    try {
      this.item = await this.#api.item(id, controller.signal);
    } catch (error) {
      if (!controller.signal.aborted) this.#explain(error, { again: () => this.show(id) });
      return;
    }
    this.subtitle = wantedSubtitle(this.item);
    document.title = `${this.item.title} · ether`;
    showItem(this.item);
    this.#showCover();
    byId("watch-title").focus({ preventScroll: true });
    this.#keeper = new PositionKeeper(this.#api, id, this.#onPosition);
    this.#controls.update();
    this.#curtain.wait(null);
    if (isBegun(this.item)) this.#offerResume();
    else this.#start(0);
  }

  hide() {
    this.#endVisit();
    byId("watch").hidden = true;
  }

  // What the controls and the dialog drive.

  /** Seconds; the item's own length until the stream has said its. */
  get duration() {
    const own = this.#video.duration;
    if (this.#started && Number.isFinite(own) && own > 0) return own;
    return (this.#playback?.durationMs ?? this.item?.durationMs ?? 0) / 1000;
  }

  get position() {
    return this.#hasPicture() ? this.#video.currentTime : this.#at;
  }

  get paused() {
    return this.#video.paused;
  }

  get decision() {
    return this.#playback?.decision ?? null;
  }

  togglePlay() {
    if (this.#curtain.isOpen) {
      this.#curtain.pressFirst();
    } else if (this.#video.paused) {
      this.#play();
    } else {
      this.#video.pause();
    }
  }

  seek(seconds) {
    const target = Math.max(0, Math.min(this.duration, seconds));
    if (this.#curtain.isOpen && !this.#engine) {
      // Stopped, or not begun: choosing a place is choosing to play from it.
      this.#start(target);
      return;
    }
    this.#at = target;
    if (this.#hasPicture()) this.#video.currentTime = target;
    this.#controls.update();
  }

  openTune() {
    this.#tune.open();
  }

  leave() {
    location.hash = "#/";
  }

  /** Another quality, sound or subtitle: the player switches where it can, else a new playback from the same place. */
  choose({ quality = this.quality, audio = this.audio, subtitle = this.subtitle }) {
    if (quality === this.quality && audio === this.audio && subtitle === this.subtitle) return;
    const switched = this.#switch(quality, audio, subtitle);
    this.quality = quality;
    this.audio = audio;
    if (subtitle !== this.subtitle) keepSubtitle(this.item, subtitle);
    this.subtitle = subtitle;
    if (this.#playback && !switched) this.#restart();
  }

  #switch(quality, audio, subtitle) {
    if (!this.#engine || !this.#playback || this.#playback.lost) return false;
    if (subtitle !== this.subtitle && !this.#caption(subtitle)) return false;
    if (audio !== this.audio) {
      const sounds = this.decision?.sounds ?? [];
      const place = sounds.findIndex((sound) => sound.stream === audio);
      if (sounds.length < 2 || place < 0 || !this.#engine.hear(place)) return false;
    }
    if (quality === this.quality) return true;
    const offered = this.decision?.qualities ?? [];
    if (quality === "auto") return offered.length > 1 && this.#engine.show(null);
    return offered.some(({ height }) => String(height) === quality) && this.#engine.show(Number(quality));
  }

  /** Shows another text track, or none; what is drawn into the picture takes another picture. */
  #caption(subtitle) {
    const texts = this.#playback.subtitles;
    const place = texts.findIndex((text) => text.stream === subtitle);
    const drawn = (stream) => stream !== null && !texts.some((text) => text.stream === stream);
    if (drawn(subtitle) || drawn(this.subtitle)) return false;
    this.#engine.caption(place);
    return true;
  }

  /** The qualities that the item was last offered in together. */
  get ladder() {
    return this.#ladder;
  }

  /** The server's view of the playback, or null when there is none to be had. */
  async lookAtSession() {
    try {
      return (await this.#playback?.look(this.#visit?.controller.signal)) ?? null;
    } catch {
      return null;
    }
  }

  numbers() {
    const rows = [];
    if (this.#engineName) rows.push(["Played by", this.#engineName]);
    const { videoWidth, videoHeight } = this.#video;
    if (videoWidth > 0) rows.push(["Shown", `${videoWidth} × ${videoHeight}`]);
    if (this.#engine) rows.push(["Ready ahead", `${Math.round(this.#ahead())} s`]);
    const frames = this.#video.getVideoPlaybackQuality?.();
    if (frames?.totalVideoFrames > 0) rows.push(["Frames lost", `${frames.droppedVideoFrames} of ${frames.totalVideoFrames}`]);
    return rows;
  }

  // One playback.

  async #start(seconds, { play = true } = {}) {
    const visit = this.#visit;
    if (!visit) return;
    const { signal } = visit.controller;
    this.#at = seconds;
    this.#started = false;
    this.#wantsPlay = play;
    this.#retries = 0;
    this.#curtain.hide();
    this.#curtain.wait("Asking the server…");
    const player = choosePlayer(this.#video, new URLSearchParams(location.search).get("player"));
    try {
      if (player === null) throw new ApiError({ code: "no_player" });
      const playback = await openPlayback(this.#api, this.#request(seconds), signal);
      if (signal.aborted) {
        playback.end();
        return;
      }
      this.#playback = playback;
      if (playback.decision.qualities?.length > 1) this.#ladder = playback.decision.qualities;
      this.#showDecision();
      const engine = await attach({
        video: this.#video,
        url: playback.url,
        isFile: playback.isFile,
        player,
        startSeconds: seconds,
        texts: playback.subtitles,
        onWaiting: (error) => this.#onWaiting(error),
        onFailure: (error) => this.#onFailure(playback, error),
      });
      if (signal.aborted || this.#playback !== playback) {
        // Left while the player was loading; the video belongs to someone else by now.
        if (!this.#engine) engine.detach();
        playback.end();
        return;
      }
      this.#engine = engine;
      this.#engineName = engine.name;
      engine.caption(playback.subtitles.findIndex((text) => text.stream === this.subtitle));
      byId("stop").disabled = false;
      playback.reportOn(() => ({ state: this.#video.paused ? "paused" : "playing", positionMs: this.position * 1000 }));
      this.#curtain.wait(playback.decision.mode === "encode" ? "Starting the encoder…" : "Loading…");
      if (play) this.#play();
    } catch (error) {
      if (!signal.aborted) this.#explain(error, { again: () => this.#start(seconds) });
    }
  }

  #request(seconds) {
    const quality = qualities(this.item, this.#ladder).find((each) => each.id === this.quality)?.request ?? {};
    const request = {
      item: this.item.id,
      protocol: "hls",
      offsetMs: Math.round(seconds * 1000),
      client: abilities(this.item.streams),
      ...quality,
    };
    // A browser cannot tell where a file that was cut off ends; the server's segments can.
    if ((this.item.gaps ?? []).some((gap) => gap.what === "truncated")) request.container = "fmp4";
    if (this.audio !== null) request.audio = this.audio;
    if (this.subtitle !== null) request.subtitle = this.subtitle;
    return request;
  }

  #play() {
    this.#wantsPlay = true;
    if (this.#playback?.lost) {
      this.#restart();
      return;
    }
    this.#video.play().catch((error) => {
      // Browsers start no sound without a gesture, after a reload for instance.
      if (error.name === "NotAllowedError" && this.#visit) {
        this.#curtain.wait(null);
        this.#curtain.show({ title: this.item.title, words: "Ready.", actions: [["Play", () => { this.#curtain.hide(); this.#play(); }]] });
      }
    });
  }

  async #restart(seconds = this.position) {
    const play = this.#wantsPlay;
    this.#curtain.holdFrame();
    this.#detach();
    const old = this.#playback;
    this.#playback = null;
    this.#at = seconds;
    this.#started = false;
    this.#curtain.hide();
    this.#curtain.wait("Changing over…");
    const visit = this.#visit;
    // Its encoder's place must be free before the next one asks.
    await old?.end();
    if (this.#visit === visit) await this.#start(seconds, { play });
  }

  #stop() {
    const at = this.position;
    this.#keep(false);
    this.#curtain.holdFrame();
    this.#detach();
    this.#playback?.end();
    this.#playback = null;
    this.#at = at;
    this.#started = false;
    this.#controls.update();
    this.#curtain.show({
      title: `Stopped at ${clock(at)}`,
      actions: [["Go on", () => this.#start(at)], ["To the library", () => this.leave()]],
    });
    say(`Stopped at ${spokenClock(at)}.`);
  }

  #detach() {
    clearTimeout(this.#retryTimer);
    this.#doom = null;
    this.#gaveUp = false;
    this.#engine?.detach();
    this.#engine = null;
    this.#engineName = "";
    byId("stop").disabled = true;
    this.#curtain.wait(null);
  }

  #endVisit({ leaving = false } = {}) {
    if (!this.#visit) return;
    this.#keep(false, { leaving });
    this.#visit.controller.abort();
    this.#visit = null;
    this.#playback?.end({ leaving });
    this.#playback = null;
    this.#tune.close();
    this.#controls.active = false;
    this.#detach();
    this.item = null;
    this.#keeper = null;
    nameForMediaKeys(null);
  }

  // What can go wrong.

  #onWaiting(error) {
    if (error === null) {
      this.#retries = 0;
      if (this.#gaveUp) this.#curtain.hide();
      this.#gaveUp = false;
      this.#curtain.waitingFor("Loading…");
      return;
    }
    this.#curtain.waitingFor(error.code === "not_ready" ? "The server prepares this part…"
      : error.status === 503 || error.status === 429 ? `${explain(error).title}. Waiting…`
        : "The server cannot be reached. Trying again…");
  }

  #onFailure(playback, error) {
    if (this.#playback !== playback) return;
    if (error.unreachable && (error.code === "offline" || error.code === "timeout")) {
      this.#onWaiting(error);
      this.#retries += 1;
      if (this.#retries > RETRIES_UNSEEN && !this.#gaveUp && this.#video.readyState < HTMLMediaElement.HAVE_FUTURE_DATA) {
        // Said, and still tried: the curtain goes by itself when the server is back.
        this.#gaveUp = true;
        this.#explain(error, { again: () => this.#retry() });
      }
      clearTimeout(this.#retryTimer);
      this.#retryTimer = setTimeout(() => this.#engine?.retry(), RETRY_MS);
      return;
    }
    // What is loaded already can still be watched: loading runs far ahead of the picture.
    if (!this.#video.seeking && !this.#video.error && this.#ahead() > 0.3) this.#doom = { playback, error };
    else this.#fail(playback, error);
  }

  /** The picture has come to where loading failed, or jumped to where nothing is loaded. */
  #meetDoom() {
    const { playback, error } = this.#doom;
    this.#doom = null;
    if (this.#playback !== playback) return;
    const end = error.fields.endMs / 1000;
    if (error.code === "source_ended" && this.#video.currentTime < end - 1) this.#engine?.retry();
    else this.#fail(playback, error, { reachedEnd: error.code === "source_ended" && this.#video.currentTime < end + 1 });
  }

  async #fail(playback, error, { reachedEnd = false } = {}) {
    const at = this.position;
    this.#keep(reachedEnd);
    this.#curtain.holdFrame();
    // Why a playback ended, or what became of its source, is the server's to say.
    const session = await this.lookAtSession();
    if (this.#playback !== playback) return;
    this.#detach();
    playback.end();
    this.#playback = null;
    this.#at = at;
    this.#started = false;
    this.#explain(whyEnded(error, session), { again: (from = at) => this.#start(from), at });
  }

  #retry() {
    this.#onWaiting(null);
    this.#curtain.wait("Trying again…");
    this.#engine?.retry();
  }

  /** Draws the curtain with the words for `error` and the buttons that fit. */
  #explain(error, { again, at = null }) {
    this.#curtain.wait(null);
    const { title, advice, detail, mend } = explain(error);
    const actions = [];
    const end = error.fields?.endMs / 1000;
    if (Number.isFinite(end)) actions.push([`Play from ${clock(Math.max(0, end - 10))}`, () => again(Math.max(0, end - 10))]);
    else if (mend === Mend.CONTINUE && at !== null && at > 1) actions.push([`Continue from ${clock(at)}`, again]);
    else if (mend === Mend.CONTINUE || mend === Mend.RETRY) actions.push(["Try again", again]);
    if (this.item && this.quality !== "auto") {
      actions.push(["Automatic quality", () => { this.quality = "auto"; again(); }]);
    }
    actions.push(["To the library", () => this.leave()]);
    this.#curtain.show({ title, words: advice, detail, actions, isProblem: true });
    say(`${title}. ${advice}`);
  }

  #onEnded() {
    const claimed = (this.item?.durationMs ?? 0) / 1000;
    const at = this.#video.currentTime;
    const early = claimed - at > Math.max(EARLY_SECONDS, claimed * 0.01);
    this.#keep(true);
    this.#detach();
    this.#playback?.end();
    this.#playback = null;
    this.#started = false;
    this.#at = early ? at : 0;
    this.#controls.update();
    if (early) {
      this.#explain(new ApiError({ code: "source_ended", message: `It says that it is ${clock(claimed)} long.`, fields: { endMs: at * 1000 } }), { again: (from = 0) => this.#start(from) });
    } else {
      this.#curtain.show({ title: "The end", actions: [["Watch again", () => this.#start(0)], ["To the library", () => this.leave()]] });
    }
  }

  #keep(finished, options) {
    if (!this.#keeper || !this.#started) return;
    const { duration, position } = this;
    // The last titles count as seen.
    const seen = finished || (duration > 60 && duration - position < Math.min(60, duration * 0.03));
    this.#keeper.keep(position * 1000, seen, options);
  }

  // What is shown.

  #offerResume() {
    const seconds = this.item.positionMs / 1000;
    this.#at = seconds;
    this.#controls.update();
    this.#curtain.show({
      title: this.item.title,
      actions: [[`Resume at ${clock(seconds)}`, () => this.#start(seconds)], ["From the start", () => this.#start(0)]],
    });
  }

  /** Whether the video's own clock tells where the viewer is. */
  #hasPicture() {
    return this.#started && this.#video.readyState >= HTMLMediaElement.HAVE_METADATA;
  }

  /** Seconds that are loaded beyond the current position. */
  #ahead() {
    const { buffered, currentTime } = this.#video;
    for (let i = 0; i < buffered.length; i += 1) {
      if (buffered.start(i) <= currentTime + 0.1 && buffered.end(i) > currentTime) return buffered.end(i) - currentTime;
    }
    return 0;
  }

  #showDecision() {
    const words = modeWords(this.decision);
    byId("how").hidden = words === null;
    byId("how").textContent = words?.short ?? "";
    byId("how").title = words?.long ?? "";
    byId("watch-decision").hidden = words === null;
    byId("watch-decision").replaceChildren(...decisionElements(this.decision));
    this.#tune.update();
  }

  async #showCover() {
    const { item } = this;
    const visit = this.#visit;
    byId("stage").classList.toggle("is-music", item.kind === "music");
    let url = null;
    try {
      url = URL.createObjectURL(await this.#api.picture(item.picture, visit.controller.signal));
      visit.controller.signal.addEventListener("abort", () => URL.revokeObjectURL(url), { once: true });
    } catch {
      // Without a picture there is a plain stage.
    }
    if (this.#visit !== visit) return;
    nameForMediaKeys(item.title, url);
    if (url === null) return;
    byId("cover").src = url;
    byId("cover").hidden = this.#started && item.kind !== "music";
  }

  #reset() {
    this.item = null;
    this.quality = "auto";
    this.audio = null;
    this.subtitle = null;
    this.#ladder = [];
    this.#at = 0;
    this.#started = false;
    this.#curtain.hide();
    for (const id of ["held-frame", "cover", "how", "watch-decision", "watch-warnings"]) byId(id).hidden = true;
    for (const id of ["watch-title", "stage-title", "watch-facts"]) byId(id).textContent = "";
    byId("watch-streams").replaceChildren();
    byId("cover").removeAttribute("src");
  }

  #wire() {
    const video = this.#video;
    video.addEventListener("loadeddata", () => {
      this.#started = true;
      // A place chosen while it was loading, or where loading anew lost it.
      if (Math.abs(video.currentTime - this.#at) > 1) video.currentTime = this.#at;
      this.#curtain.releaseFrame();
      byId("cover").hidden = this.item?.kind !== "music" || !byId("cover").src;
    });
    video.addEventListener("playing", () => {
      this.#curtain.wait(null);
      this.#onWaiting(null);
    });
    video.addEventListener("canplay", () => {
      // At the end it is paused too, and playing would begin from the start.
      if (!video.paused || video.ended) return;
      this.#curtain.wait(null);
      // Loading anew has paused it.
      if (this.#engine && this.#wantsPlay && !this.#curtain.isOpen) this.#play();
    });
    video.addEventListener("waiting", () => {
      if (this.#doom) this.#meetDoom();
      if (this.#engine) this.#curtain.wait(this.#curtain.waitingWords || "Loading…");
    });
    video.addEventListener("seeking", () => {
      if (this.#doom && this.#ahead() === 0) this.#meetDoom();
      if (this.#engine) this.#curtain.wait("Loading…");
    });
    video.addEventListener("seeked", () => {
      if (video.readyState >= HTMLMediaElement.HAVE_FUTURE_DATA) this.#curtain.wait(null);
      this.#keep(false);
    });
    video.addEventListener("timeupdate", () => {
      if (!this.#hasPicture() || video.seeking) return;
      this.#at = video.currentTime;
      if (!video.paused) this.#keeper?.tick(this.#at * 1000, performance.now());
    });
    video.addEventListener("pause", () => {
      // An error pauses too.
      if (video.ended || video.error) return;
      // Pressed here or on a headset: either way it is meant.
      this.#wantsPlay = false;
      this.#keep(false);
    });
    for (const name of ["play", "pause"]) {
      video.addEventListener(name, () => this.#playback?.reportOn(() => ({
        state: video.paused ? "paused" : "playing",
        positionMs: this.position * 1000,
      })));
    }
    video.addEventListener("ended", () => this.#onEnded());
    byId("stop").addEventListener("click", () => this.#stop());
    addEventListener("online", () => this.#engine && this.#retries > 0 && this.#engine.retry());
    addEventListener("visibilitychange", () => {
      // Phones may never send pagehide.
      if (document.visibilityState === "hidden" && this.#visit) this.#keep(false, { leaving: true });
    });
    addEventListener("pagehide", () => this.#endVisit({ leaving: true }));
    addEventListener("pageshow", (event) => {
      // Back from the browser's cache: the playback was ended when the page was left.
      const match = /^#\/watch\/([^/?]+)$/.exec(location.hash);
      if (event.persisted && match) this.show(decodeURIComponent(match[1]));
    });
    wireMediaKeys({
      play: () => this.#play(),
      pause: () => video.pause(),
      stop: () => this.#stop(),
      seekbackward: (details) => this.#controls.seekBy(-(details.seekOffset ?? 10)),
      seekforward: (details) => this.#controls.seekBy(details.seekOffset ?? 10),
      seekto: (details) => this.seek(details.seekTime),
    }, () => this.#visit !== null);
  }
}

/** The most telling of what the player saw and what the server says of the playback. */
function whyEnded(error, session) {
  if (session?.ended) return new ApiError({ status: 410, ...session.ended });
  // The browser's own HLS says only that it failed, and who waited in vain only that; the encoder says how it ended.
  const encoder = session?.encoder?.ended;
  if ((error.status === 0 || error.code === "not_ready") && encoder && !["complete", "stopped"].includes(encoder.code)) return new ApiError({ status: 502, ...encoder });
  return error;
}
