// When something goes wrong the page says what it is and what to do, and doing it works.

import assert from "node:assert/strict";
import fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { after, afterEach, before, test } from "node:test";

import { openViewer } from "../lib/browser.js";
import { startEther } from "../lib/ether.js";
import { bring, folderOf, repository } from "../lib/media.js";
import { closeStage, openStage } from "../lib/stage.js";
import { until } from "../lib/until.js";

let server;
let browser;

before(async () => {
  ({ server, browser } = await openStage(["flash-beep.mkv", "interlaced.ts", "ntsc.mkv", "truncated.mkv", "upright.mp4"]));
});

after(() => closeStage({ server, browser }));

afterEach(() => server.noEncoder());

test("an address of nothing says that it is gone and leads to the library", async () => {
  const viewer = await openViewer(browser, server);
  await viewer.page.goto(viewer.address(`#/watch/${"0".repeat(32)}`));
  assert.match(await viewer.curtain(), /no longer here/);
  await viewer.page.getByRole("button", { name: "To the library" }).click();
  await viewer.page.locator("#grid .card").first().waitFor();
  await viewer.close();
});

test("a film whose file has gone says so", async () => {
  const added = await bring(path.join(repository, "target/clips/interlaced.ts"), server.folder, "going.ts");
  const { id } = await until("the new film", async () => (await server.api("GET", "/ether/api/library")).body.items.find((item) => item.file === "going.ts"), 60_000);
  const viewer = await openViewer(browser, server);
  await viewer.openLibrary();
  await fs.rm(added);
  await viewer.page.evaluate((hash) => { location.hash = hash; }, `#/watch/${id}`);
  const words = await viewer.curtain();
  assert.match(words, /The file is gone[^]*going\.ts/);
  assert.ok(await viewer.page.getByRole("button", { name: "To the library" }).isVisible());
  await viewer.close();
});

for (const player of ["mse", "native"]) {
  test(`a playback that was stopped elsewhere is explained, and goes on where it was (${player})`, async () => {
    const viewer = await openViewer(browser, server, { player });
    await viewer.watch((await server.item("flash-beep.mkv")).id);
    await viewer.shows(0, 2);
    await viewer.chooseQuality("240");
    await until("the encoded playback", async () => (await viewer.mode()) === "encode");
    await viewer.shows(1, 3);
    await endEverything();
    // Beyond what is loaded, so that the server has to be asked.
    await viewer.seek(95);
    assert.match(await viewer.curtain(), /This playback was stopped/);
    await viewer.page.getByRole("button", { name: "Continue from 1:35" }).click();
    await viewer.shows(95, 3);
    await viewer.page.locator("#stop").click();
    await viewer.close();
  });
}

test("a part that was not ready in time is asked for again, though the browser's own HLS gives up on it", async () => {
  const viewer = await openViewer(browser, server, { player: "native" });
  let asked = 0;
  await viewer.page.route(/\/sessions\/media\/.*\.m4s/, (route) => {
    asked += 1;
    if (asked > 2) return route.continue();
    return route.fulfill({ status: 503, headers: { "Retry-After": "1" }, contentType: "application/json", body: '{"code":"not_ready","message":"the segment is being made"}' });
  });
  await viewer.watch((await server.item("interlaced.ts")).id);
  await viewer.shows(0.5, 5);
  assert.ok(asked > 2);
  await viewer.page.locator("#stop").click();
  await viewer.close();
});

test("an encoder that lives and makes nothing is told of, and going on starts one that works", async () => {
  const tools = await fs.mkdtemp(path.join(os.tmpdir(), "ether-tools-"));
  const hangs = path.join(tools, "hangs");
  const program = path.join(tools, "ffmpeg");
  // What stands for a disk that does not answer: encoders begin, and nothing comes of it.
  await fs.writeFile(program, `#!/bin/sh\ncase "$*" in *libx264*) [ -e '${hangs}' ] && exec sleep 600;; esac\nexec ffmpeg "$@"\n`, { mode: 0o755 });
  const mine = await startEther({ folder: await folderOf(["interlaced.ts"]), environment: { ETHER_FFMPEG: program } });
  try {
    const { id } = await mine.item("interlaced.ts");
    await fs.writeFile(hangs, "");
    const viewer = await openViewer(browser, mine);
    await viewer.watch(id);
    await viewer.page.evaluate(() => {
      const words = document.getElementById("spinner-words");
      globalThis.said = [];
      new MutationObserver(() => globalThis.said.push(words.textContent)).observe(words, { childList: true, characterData: true, subtree: true });
    });
    // Half a minute is what an encoder gets. No other quality is tried then, each of which would take as long.
    await viewer.page.locator("#curtain.is-problem:not([hidden])").waitFor({ timeout: 60_000 });
    assert.match(await viewer.curtain(), /The encoder got stuck/);
    const said = await viewer.page.evaluate(() => globalThis.said);
    assert.ok(said.some((words) => /prepares this part/.test(words)) && !said.some((words) => /cannot be reached/.test(words)), said.join("; "));
    await fs.rm(hangs);
    await viewer.page.locator("#curtain-actions button").first().click();
    await viewer.shows(0.5, 3);
    await viewer.page.locator("#stop").click();
    await viewer.close();
  } finally {
    await mine.stop();
    await fs.rm(tools, { recursive: true, force: true });
  }
});

test("a server that goes away and comes back is waited for", async () => {
  const mine = await startEther({ folder: await folderOf(["flash-beep.mkv"]) });
  await mine.scanned();
  const viewer = await openViewer(browser, mine);
  await viewer.watch((await mine.item("flash-beep.mkv")).id);
  await viewer.shows(0, 2);
  await viewer.chooseQuality("240");
  await until("the encoded playback", async () => (await viewer.mode()) === "encode");
  await viewer.shows(1, 3);
  await mine.crash();
  await mine.noEncoder();
  await viewer.seek(100);
  await viewer.page.locator("#spinner-words", { hasText: /cannot be reached/ }).waitFor();
  const again = await startEther({ folder: mine.folder, dataDir: mine.dataDir, port: mine.port });
  try {
    // The new server may or may not know the old playback; either way one press goes on.
    await until("the picture or a way on", () => viewer.page.evaluate(() => {
      const video = document.getElementById("video");
      const button = document.querySelector("#curtain:not([hidden]) #curtain-actions button");
      if (button) button.click();
      return video.currentTime >= 100 && video.readyState > 2 && !video.paused;
    }), 60_000);
    await viewer.shows(100, 3);
    await viewer.close();
  } finally {
    await again.stop();
  }
});

test("a file that is shorter than it says plays to its real end, and the page says that it is cut short", async () => {
  const viewer = await openViewer(browser, server);
  await viewer.watch((await server.item("truncated.mkv")).id);
  await viewer.shows(1, 3);
  await viewer.seek(60);
  await viewer.shows(60, 3);
  await viewer.seek(110);
  await viewer.curtain();
  const warnings = await viewer.page.locator("#watch-warnings").innerText();
  assert.match(warnings, /cut short|not whole|truncated|shorter|ends before/i, "the reason should be on the page");
  await viewer.close();
});

test("asking for what cannot be done is explained, with a choice that works", async () => {
  const viewer = await openViewer(browser, server);
  await viewer.watch((await server.item("interlaced.ts")).id);
  await viewer.shows(0.5, 3);
  // MPEG-2 cannot be shown as it is.
  await viewer.chooseQuality("original");
  await viewer.page.locator("#curtain.is-problem:not([hidden])").waitFor();
  await viewer.page.getByRole("button", { name: "Automatic quality" }).click();
  await viewer.shows(0.5, 3);
  await viewer.page.locator("#stop").click();
  await viewer.close();
});

async function endEverything() {
  const { body } = await server.api("GET", "/ether/api/sessions");
  const sessions = Array.isArray(body) ? body : body.sessions;
  assert.ok(sessions.length > 0, "there should be a playback to end");
  for (const { id } of sessions) assert.equal((await server.api("DELETE", `/ether/api/sessions/${id}`)).status, 204);
}
