// Players that nobody here wrote, in a page of another origin: each plays each protocol that it knows from the start,
// after seeks into what no encoder has made yet, in another quality and another language, and to the end, without one
// error event.

import assert from "node:assert/strict";
import fs from "node:fs/promises";
import http from "node:http";
import path from "node:path";
import { after, before, describe, test } from "node:test";

import { openBrowser } from "../lib/browser.js";
import { freePort, startEther } from "../lib/ether.js";
import { folderOf, repository } from "../lib/media.js";

const MODULES = path.join(repository, "testing/browser/node_modules");
const SCRIPTS = {
  "hls.js": "hls.js/dist/hls.min.js",
  shaka: "shaka-player/dist/shaka-player.compiled.js",
  "dash.js": "dashjs/dist/modern/umd/dash.all.min.js",
};
const LONG = process.env.ETHER_SOAK ? 10 : 2;

let server;
let browser;
let pages;
let origin;

before(async () => {
  const port = await freePort();
  origin = `http://127.0.0.1:${port}`;
  pages = http.createServer(serve).listen(port, "127.0.0.1");
  server = await startEther({
    folder: await folderOf(["ntsc.mkv", "three-languages.mkv", "vfr.mkv", "irregular-keyframes.mkv"]),
    environment: { ETHER_ORIGINS: origin, ETHER_CAPACITY: "16" },
  });
  await server.scanned();
  browser = await openBrowser();
});

after(async () => {
  await browser?.close();
  await server?.stop();
  pages?.close();
});

/** A bare page with a player's script, and the scripts. */
async function serve(request, response) {
  const name = decodeURIComponent(new URL(request.url, origin).pathname.slice(1));
  if (Object.values(SCRIPTS).includes(name)) {
    response.setHeader("Content-Type", "text/javascript");
    response.end(await fs.readFile(path.join(MODULES, name)));
    return;
  }
  response.setHeader("Content-Type", "text/html");
  const script = SCRIPTS[name] ? `<script src="/${SCRIPTS[name]}"></script>` : "";
  response.end(`<!doctype html><title>player</title>${script}<video id="video" muted width="480" height="270"></video>`);
}

/** Runs in the page: begins to play, and gathers everything that a player calls an error. */
function begin({ player, url }) {
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
  } else {
    video.crossOrigin = "anonymous";
    video.src = url;
    window.qualities = () => 0;
    window.sounds = () => 0;
  }
  video.play().catch(() => {});
}

/** Waits until pictures of `from` seconds and later have been shown; fails with what stands in the way. */
async function shows(page, from, what) {
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
  assert.equal(outcome, null, `${what}: no picture beyond ${from} s`);
}

async function troubles(page) {
  return page.evaluate(() => window.troubles);
}

/** Opens a session of `file` in a new page of `player`. */
async function open(player, file, wish) {
  const { id } = await server.item(file);
  const { status, body } = await server.api("POST", "/ether/api/sessions", { item: id, ...wish });
  assert.equal(status, 201, JSON.stringify(body));
  const page = await browser.newPage();
  await page.goto(`${origin}/${player}`);
  await page.evaluate(begin, { player, url: server.url + body.url });
  return { page, id: body.id, length: body.durationMs / 1000 };
}

const RUNS = [
  { player: "hls.js", file: "ntsc.mkv", wish: { protocol: "hls", video: "encode", ladder: true } },
  { player: "hls.js", file: "three-languages.mkv", wish: { protocol: "hls", video: "encode", container: "ts" } },
  { player: "hls.js", file: "irregular-keyframes.mkv", wish: { protocol: "hls", video: "copy" } },
  { player: "shaka", file: "three-languages.mkv", wish: { protocol: "hls", video: "encode", ladder: true } },
  { player: "shaka", file: "ntsc.mkv", wish: { protocol: "dash", video: "encode", ladder: true } },
  { player: "shaka", file: "irregular-keyframes.mkv", wish: { protocol: "dash", video: "copy" } },
  { player: "dash.js", file: "three-languages.mkv", wish: { protocol: "dash", video: "encode", ladder: true } },
  { player: "dash.js", file: "vfr.mkv", wish: { protocol: "dash", video: "encode" } },
  { player: "native", file: "ntsc.mkv", wish: { protocol: "hls", video: "encode", ladder: true } },
];

for (const { player, file, wish } of RUNS) {
  describe(`${player}, ${wish.protocol}, ${file}`, () => {
    test("plays from the start, after seeks, in another quality and language, and to the end", async () => {
      const { page, id, length } = await open(player, file, { segmentSeconds: 3, ...wish });
      await shows(page, 0.5, "the start");
      for (let n = 0; n < LONG; n += 1) {
        // Scattered over the film, never where the last one was,
        // and within a segment: at an edge, players are allowed to take either.
        const to = 3.003 * Math.floor((((n * 0.618 + 0.4) % 0.85) * length) / 3.003) + 1.5;
        await page.evaluate((to) => { document.getElementById("video").currentTime = to; }, to);
        await shows(page, to + 0.3, `seek to ${to}`);
      }
      const [qualities, sounds] = await page.evaluate(() => [window.qualities(), window.sounds()]);
      if (wish.ladder && player !== "native") {
        assert.ok(qualities > 1, `${qualities} qualities: ${JSON.stringify(await page.evaluate(() => window.seen?.()))}`);
        await page.evaluate((n) => window.chooseQuality(n), qualities - 1);
      }
      if (file === "three-languages.mkv") {
        assert.equal(sounds, 3, "every language is offered");
        await page.evaluate(() => window.chooseSound(2));
      }
      const at = await page.evaluate(() => document.getElementById("video").currentTime);
      await shows(page, at + 2, "after the change");
      await page.evaluate((to) => {
        const video = document.getElementById("video");
        video.playbackRate = 2;
        video.currentTime = to;
      }, length - 4);
      await page.waitForFunction(() => document.getElementById("video").ended, null, { timeout: 45_000 });
      assert.deepEqual(await troubles(page), []);
      await page.close();
      assert.equal((await server.api("DELETE", `/ether/api/sessions/${id}`)).status, 204);
      await server.noEncoder();
    });
  });
}
