// Players that nobody here wrote, each in a bare page of another origin than the server's: hls.js, shaka, dash.js and
// the browser's own HLS behind one handful of words, with everything that they call an error.

import assert from "node:assert/strict";
import fs from "node:fs/promises";
import http from "node:http";
import path from "node:path";

import { repository } from "./media.js";

const MODULES = path.join(repository, "testing/browser/node_modules");
const SCRIPTS = {
  "hls.js": "hls.js/dist/hls.min.js",
  shaka: "shaka-player/dist/shaka-player.compiled.js",
  "dash.js": "dashjs/dist/modern/umd/dash.all.min.js",
};

/** Serves the bare pages at `origin`; `close()` ends it. */
export function servePlayers(port) {
  const origin = `http://127.0.0.1:${port}`;
  const pages = http.createServer(async (request, response) => {
    const name = decodeURIComponent(new URL(request.url, origin).pathname.slice(1));
    if (Object.values(SCRIPTS).includes(name)) {
      response.setHeader("Content-Type", "text/javascript");
      response.end(await fs.readFile(path.join(MODULES, name)));
      return;
    }
    response.setHeader("Content-Type", "text/html");
    const script = SCRIPTS[name] ? `<script src="/${SCRIPTS[name]}"></script>` : "";
    response.end(`<!doctype html><title>player</title>${script}<video id="video" muted width="480" height="270"></video>`);
  }).listen(port, "127.0.0.1");
  return { origin, close: () => pages.close() };
}

/** Opens a session of `file` in a new page of `player`, which begins to play it. */
export async function openPlayer({ browser, server, origin }, player, file, wish) {
  const { id } = await server.item(file);
  const { status, body } = await server.api("POST", "/ether/api/sessions", { item: id, ...wish });
  assert.equal(status, 201, JSON.stringify(body));
  const page = await browser.newPage();
  requests.set(page, followRequests(page));
  await page.goto(`${origin}/${player}`);
  const texts = body.subtitles.map(({ vtt }) => server.url + vtt);
  await page.evaluate(begin, { player, url: server.url + body.url, texts });
  return { page, id: body.id, length: body.durationMs / 1000, session: body };
}

const requests = new WeakMap();
const REMEMBERED = 16;

/** The page's last requests and what came of each: a player that shows nothing more either waits for one of them or asks no more. */
function followRequests(page) {
  const last = [];
  page.on("request", (request) => {
    last.push({ request, came: "no answer yet" });
    if (last.length > REMEMBERED) last.shift();
  });
  const cameTo = (request, came) => {
    const known = last.find((each) => each.request === request);
    if (known) known.came = came;
  };
  page.on("response", (response) => cameTo(response.request(), `${response.status()}, not at its end`));
  page.on("requestfinished", async (request) => cameTo(request, String((await request.response())?.status())));
  page.on("requestfailed", (request) => cameTo(request, request.failure()?.errorText));
  // The grant in an address opens the playback: the path is enough.
  return () => last.map(({ request, came }) => `${request.method()} ${new URL(request.url()).pathname.split("/").slice(-3).join("/")}: ${came}`);
}

/** Runs in the page: begins to play, and gathers everything that a player calls an error. */
function begin({ player, url, texts }) {
  const video = document.getElementById("video");
  window.troubles = [];
  const trouble = (what) => window.troubles.push(what);
  video.addEventListener("error", () => trouble(`video: ${video.error?.message ?? video.error?.code}`));
  if (player === "hls.js") {
    const hls = new window.Hls();
    // What it gave up itself, for another quality or place, is no trouble.
    hls.on(window.Hls.Events.ERROR, (_, data) => {
      if (data.details !== "aborted") trouble(`${data.type} ${data.details} ${data.reason ?? ""}`);
    });
    hls.loadSource(url);
    hls.attachMedia(video);
    window.qualities = () => hls.levels.length;
    window.chooseQuality = (n) => { hls.nextLevel = n; };
    window.sounds = () => hls.audioTracks.length;
    window.chooseSound = (n) => { hls.audioTrack = n; };
    window.texts = () => hls.subtitleTracks.length;
    window.chooseText = (n) => {
      hls.subtitleTrack = n;
      hls.subtitleDisplay = true;
    };
  } else if (player === "shaka") {
    window.shaka.polyfill.installAll();
    const shaka = new window.shaka.Player();
    shaka.addEventListener("error", ({ detail }) => trouble(`shaka ${detail.code} ${JSON.stringify(detail.data).slice(0, 300)}`));
    shaka.attach(video).then(() => shaka.load(url)).catch((error) => trouble(`load ${error.code} ${String(error.data).slice(0, 300)}`));
    const heights = () => [...new Set(shaka.getVariantTracks().map((track) => track.height))];
    window.qualities = () => heights().length;
    window.chooseQuality = (n) => {
      const height = heights()[n];
      shaka.configure("abr.enabled", false);
      shaka.selectVariantTrack(shaka.getVariantTracks().find((track) => track.height === height), true);
    };
    window.seen = () => shaka.getVariantTracks().map((track) => [track.width, track.height, track.bandwidth]);
    window.sounds = () => shaka.getAudioTracks().length;
    window.chooseSound = (n) => shaka.selectAudioTrack(shaka.getAudioTracks()[n]);
    window.texts = () => shaka.getTextTracks().length;
    window.chooseText = (n) => shaka.selectTextTrack(shaka.getTextTracks()[n]);
  } else if (player === "dash.js") {
    const dash = window.dashjs.MediaPlayer().create();
    dash.initialize(video, url, false);
    for (const event of ["error", "playbackError"]) {
      dash.on(event, (data) => trouble(`dash ${JSON.stringify(data.error ?? data).slice(0, 300)}`));
    }
    window.qualities = () => dash.getRepresentationsByType("video").length;
    window.chooseQuality = (n) => {
      dash.updateSettings({ streaming: { abr: { autoSwitchBitrate: { video: false } } } });
      dash.setRepresentationForTypeByIndex("video", n);
    };
    window.sounds = () => dash.getTracksFor("audio").length;
    window.chooseSound = (n) => dash.setCurrentTrack(dash.getTracksFor("audio")[n]);
    window.texts = () => dash.getTracksFor("text").length;
    window.chooseText = (n) => {
      dash.enableText(true);
      dash.setTextTrack(n);
    };
  } else {
    video.crossOrigin = "anonymous";
    video.src = url;
    window.qualities = () => 0;
    window.sounds = () => 0;
    // Chromium's own HLS reads no text tracks: a page adds the session's files.
    window.texts = () => texts.length;
    window.chooseText = (n) => {
      const track = document.createElement("track");
      Object.assign(track, { kind: "subtitles", src: texts[n] });
      video.append(track);
      track.track.mode = "showing";
    };
  }
  video.play().catch(() => {});
}

/** Waits until pictures of `from` seconds and later have been shown; fails with what stands in the way. */
export async function shows(page, from, what) {
  const outcome = await page.evaluate(({ from, limit }) => new Promise((resolve) => {
    const video = document.getElementById("video");
    if (video.paused) video.play().catch(() => {});
    let left = 5;
    const timer = setTimeout(() => resolve(`at ${video.currentTime} s, ready state ${video.readyState}, buffered ${[...Array(video.buffered.length).keys()].map((n) => `${video.buffered.start(n)}-${video.buffered.end(n)}`)}, ${JSON.stringify(window.troubles)}`), limit);
    const frame = (_, { mediaTime }) => {
      if (mediaTime >= from - 0.1) left -= 1;
      if (left > 0) return video.requestVideoFrameCallback(frame);
      clearTimeout(timer);
      resolve(null);
    };
    video.requestVideoFrameCallback(frame);
  }), { from, limit: 45_000 });
  if (outcome !== null) assert.fail(`${what}: no picture beyond ${from} s: ${outcome}; requests: ${requests.get(page)?.().join(", ")}`);
}

/** Everything that the player called an error. */
export function troubles(page) {
  return page.evaluate(() => window.troubles);
}
