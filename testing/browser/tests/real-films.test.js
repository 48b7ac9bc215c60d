// Every real file, in both players: its picture moves or its sound goes on, or the page says why not. Prints a
// table of what was done with each.

import assert from "node:assert/strict";
import fs from "node:fs/promises";
import path from "node:path";
import { after, before, describe, test } from "node:test";

import { openBrowser, openViewer } from "../lib/browser.js";
import { startEther } from "../lib/ether.js";
import { folderOf, realFilms } from "../lib/media.js";

const folder = await realFilms();
const films = folder ? (await fs.readdir(folder)).filter((name) => !name.endsWith(".md")).sort() : [];
const rows = [];

describe("real films", { skip: folder ? false : "no real films: ETHER_MEDIA is not set and ../shared/media is not there" }, () => {
  let server;
  let browser;

  before(async () => {
    server = await startEther({ folder: await folderOf(films.map((name) => path.join(folder, name))) });
    await server.scanned();
    browser = await openBrowser();
  });

  after(async () => {
    await browser?.close();
    await server?.stop();
    console.log(table(["file", "player", "mode", "result"], rows));
  });

  for (const player of ["mse", "native"]) {
    for (const film of films) {
      test(`${film} by ${player}`, async () => {
        if (rows.some(([file, , mode]) => file === film && mode === "direct")) {
          // A file that is sent as it is goes the same way whatever plays streams.
          rows.push([film, player, "direct", "as above"]);
          return;
        }
        const { items, problems } = await server.scanned();
        const item = items.find((each) => each.file === film);
        if (!item) {
          const problem = problems.find((each) => each.file === film);
          assert.ok(problem?.reason, "a file that is not in the library is listed with a reason");
          rows.push([film, player, "-", `not in the library: ${problem.reason}`]);
          return;
        }
        const viewer = await openViewer(browser, server, { player });
        await viewer.watch(item.id);
        const result = await outcome(viewer, item);
        const mode = result.mode ?? "-";
        rows.push([film, player, mode, result.words]);
        await viewer.close();
        await server.noEncoder();
        assert.ok(result.good, `${film}: ${result.words}`);
      });
    }
  }
});

/** Plays a little and says what came of it. An explanation with a reason counts, a silent failure does not. */
async function outcome(viewer, item) {
  const seconds = (item.durationMs ?? 0) / 1000;
  const enough = Math.min(1.5, seconds * 0.5);
  const handle = await viewer.page.waitForFunction(({ enough, hasPicture }) => {
    const problem = document.querySelector("#curtain.is-problem:not([hidden])");
    if (problem) return { problem: problem.querySelector("h2").textContent, detail: document.getElementById("curtain-detail").textContent };
    const video = document.getElementById("video");
    const frames = video.getVideoPlaybackQuality().totalVideoFrames;
    const heard = document.getElementById("curtain-title").textContent === "The end" && !document.getElementById("curtain").hidden;
    if (video.currentTime >= enough && (!hasPicture || frames > 2)) return { at: video.currentTime, frames, width: video.videoWidth, height: video.videoHeight };
    return heard ? { at: enough, frames, width: 0, height: 0 } : null;
  }, { enough, hasPicture: item.kind === "film" }, { timeout: 40_000 }).catch(() => null);
  if (handle === null) {
    const state = await viewer.page.evaluate(() => `at ${document.getElementById("video").currentTime} s, ${document.getElementById("spinner-words").textContent}`);
    return { good: false, words: `neither played nor explained (${state})` };
  }
  const seen = await handle.jsonValue();
  const mode = await viewer.page.locator("#watch-decision").isVisible() ? await viewer.mode() : null;
  if (seen.problem) return { good: Boolean(seen.detail), mode, words: `${seen.problem}: ${seen.detail}` };
  return { good: true, mode, words: item.kind === "film" ? `picture moves, ${seen.frames} frames, ${seen.width}x${seen.height}` : "sound goes on" };
}

function table(head, body) {
  const all = [head, ...body];
  const widths = head.map((_, column) => Math.max(...all.map((row) => String(row[column]).length)));
  return all.map((row) => row.map((cell, column) => String(cell).padEnd(widths[column])).join("  ").trimEnd()).join("\n");
}
