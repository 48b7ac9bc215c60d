// Subtitles in players that nobody here wrote: right after any seek, at the times of the picture, from text in the
// film and beside it, for films whose clocks start at zero and far from it.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import fs from "node:fs/promises";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";

import { openBrowser } from "../lib/browser.js";
import { freePort, startEther } from "../lib/ether.js";
import { folderOf, repository } from "../lib/media.js";
import { openPlayer, servePlayers, shows, troubles } from "../lib/players.js";
import { until } from "../lib/until.js";

/** Seconds that a cue may be off: under a frame of these films, which have 25 a second. */
const FRAME = 0.04;

/** Films with what their tracks say: `[from, to, words]`, in seconds of what the viewer sees. */
const FILMS = {
  // A transport stream whose clock starts at 40,001 s, with a file beside it.
  "late-clock.ts": [[2, 4, "two seconds"], [30.5, 33, "half a minute"], [54, 56, "near the end"]],
  // Text with styles and places of its own.
  "ass-cues.mkv": [[40, 42, "CUE40"], [50, 52, "CUE50"]],
  // Clock from 100 s on, sound before the picture; each cue is there while the picture is white.
  "early-sound.mkv": [[10, 10.2, "flash 10"], [70, 70.2, "flash 70"], [100, 100.2, "flash 100"]],
};

/** `[player, wish]`, each with the films that it plays in the short tier; in the long one it plays all. */
const RUNS = [
  ["hls.js", { protocol: "hls", container: "fmp4" }, ["late-clock.ts", "early-sound.mkv"]],
  ["hls.js", { protocol: "hls", container: "ts" }, ["late-clock.ts"]],
  ["native", { protocol: "hls", container: "fmp4" }, ["early-sound.mkv"]],
  ["native", { protocol: "hls", container: "ts" }, ["late-clock.ts"]],
  ["shaka", { protocol: "hls" }, ["ass-cues.mkv"]],
  ["shaka", { protocol: "dash" }, ["late-clock.ts", "early-sound.mkv"]],
  ["dash.js", { protocol: "dash" }, ["ass-cues.mkv", "early-sound.mkv"]],
];

/** In transport streams hls.js takes the first sound for the start of everything: half a second off, all together. */
const fits = (player, { container }, film) => !(player === "hls.js" && container === "ts" && film === "early-sound.mkv");

let server;
let browser;
let pages;

before(async () => {
  pages = servePlayers(await freePort());
  const folder = await folderOf(["late-clock.ts", "ass-cues.mkv"]);
  await fs.writeFile(path.join(folder, "late-clock.en.srt"), subRip(FILMS["late-clock.ts"]));
  await earlySound(folder);
  server = await startEther({ folder, environment: { ETHER_ORIGINS: pages.origin, ETHER_CAPACITY: "16" } });
  await server.scanned();
  // The one that was just made counts as being written for a moment.
  const listed = async () => (await server.api("GET", "/ether/api/library")).body.items.some((item) => item.file === "early-sound.mkv");
  await until("the film that was just made", listed, 60_000);
  browser = await openBrowser();
});

after(async () => {
  await browser?.close();
  await server?.stop();
  pages?.close();
});

for (const [player, wish, films] of RUNS) {
  describe(`${player}, ${Object.values(wish).join(", ")}`, () => {
    for (const film of process.env.ETHER_SOAK ? Object.keys(FILMS).filter((film) => fits(player, wish, film)) : films) {
      test(`${film}: what is said is shown right after each seek, and at no other time`, async () => {
        const { page, id } = await openPlayer({ browser, server, origin: pages.origin }, player, film, wish);
        await shows(page, 0.2, "the start");
        assert.equal(await page.evaluate(() => window.texts()), 1, "one track is offered");
        await page.evaluate(() => {
          document.getElementById("video").pause();
          window.chooseText(0);
        });
        const cues = FILMS[film];
        // Backwards, so that every place is one that nothing was played up to.
        for (const [from, to, words] of [...cues].reverse()) {
          const middle = await at(page, (from + to) / 2, [words]);
          const [[start, end]] = middle.cues;
          assert.ok(Math.abs(start - from) < FRAME && Math.abs(end - to) < FRAME, `"${words}" is from ${start} to ${end}, not from ${from} to ${to}`);
          const later = await at(page, to + 2, []);
          if (film === "early-sound.mkv") assert.ok(middle.light > 180 && later.light < 60, `the picture is white at ${middle.light} with the words, ${later.light} without`);
        }
        assert.deepEqual(await troubles(page), []);
        await page.close();
        assert.equal((await server.api("DELETE", `/ether/api/sessions/${id}`)).status, 204);
        await server.noEncoder();
      });
    }
  });
}

/**
 * Seeks to `seconds` and waits until the picture of then and exactly these words are shown. Resolves with the shown
 * cues as `[from, to]` and how light the picture is, 0 to 255.
 */
async function at(page, seconds, words) {
  const seen = await page.evaluate(({ seconds, words, limit }) => new Promise((resolve) => {
    const video = document.getElementById("video");
    const showing = () => [...video.textTracks].filter((track) => track.mode === "showing").flatMap((track) => [...(track.activeCues ?? [])]);
    const said = () => showing().map((cue) => cue.text.replace(/<[^>]*>/g, "").trim());
    const timer = setInterval(() => {
      if (video.seeking || video.readyState < 2 || JSON.stringify(said()) !== JSON.stringify(words)) return;
      done();
    }, 40);
    const done = () => {
      clearInterval(timer);
      clearTimeout(late);
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [8, 8];
      const pen = canvas.getContext("2d");
      pen.drawImage(video, 0, 0, 8, 8);
      const { data } = pen.getImageData(0, 0, 8, 8);
      const light = data.reduce((sum, part, n) => (n % 4 === 3 ? sum : sum + part), 0) / 192;
      resolve({ light, said: said(), cues: showing().map((cue) => [cue.startTime, cue.endTime]), at: video.currentTime, state: video.readyState,
        all: [...video.textTracks].map((track) => [track.mode, [...(track.cues ?? [])].map((cue) => [cue.startTime, cue.endTime, cue.text])]) });
    };
    const late = setTimeout(done, limit);
    video.currentTime = seconds;
  }), { seconds, words, limit: 20_000 });
  assert.deepEqual(seen.said, words, `at ${seconds} s: ${JSON.stringify(seen)}; ${JSON.stringify(await troubles(page))}`);
  return seen;
}

function subRip(cues) {
  const time = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 23).replace(".", ",");
  return cues.map(([from, to, words], n) => `${n + 1}\n${time(from)} --> ${time(to)}\n${words}\n`).join("\n");
}

/** White flashes with a cue each, from second 100 of the file's clock on, and sound that begins half a second before. */
async function earlySound(folder) {
  const words = path.join(folder, ".words.srt");
  await fs.writeFile(words, subRip(FILMS["early-sound.mkv"]));
  const flashes = path.join(await clips(), "flash-beep.mkv");
  await promisify(execFile)("ffmpeg", ["-nostdin", "-v", "error", "-itsoffset", "0.52", "-i", flashes, "-itsoffset", "0.52", "-i", words, "-i", flashes,
    "-map", "0:v", "-map", "2:a", "-map", "1:s", "-c", "copy", "-c:s", "subrip", "-output_ts_offset", "100", path.join(folder, "early-sound.mkv")]);
  await fs.rm(words);
}

/** Where the clips are, this one among them. */
async function clips() {
  await fs.rm(await folderOf(["flash-beep.mkv"]), { recursive: true });
  return path.join(repository, "target/clips");
}
