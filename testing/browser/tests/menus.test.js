// The dialog with quality, sound and subtitles: what is chosen there is what is seen and heard, at once, after a seek
// and after a reload, with the keyboard as with the mouse, and without a second encoder for the picture.

import assert from "node:assert/strict";
import fs from "node:fs/promises";
import path from "node:path";
import { after, before, describe, test } from "node:test";

import { openViewer } from "../lib/browser.js";
import { closeStage, openStage } from "../lib/stage.js";
import { until } from "../lib/until.js";

const BESIDE = "1\n00:00:02,000 --> 00:00:04,000\ntwo seconds\n\n2\n00:00:30,000 --> 00:00:33,000\nhalf a minute\n";

let server;
let browser;

before(async () => {
  ({ server, browser } = await openStage(["ass-cues.mkv", "interlaced.ts", "late-clock.ts", "three-languages.mkv"], async (folder) => {
    await fs.writeFile(path.join(folder, "late-clock.en.srt"), BESIDE);
  }));
});

after(() => closeStage({ server, browser }));

for (const player of ["mse", "native"]) {
  describe(`played by ${player}`, () => {
    test("subtitles beside a film are shown when chosen, after seeks and after a reload, until turned off", async () => {
      const viewer = await openViewer(browser, server, { player });
      const { page } = viewer;
      const { id } = await server.item("late-clock.ts");
      await viewer.watch(id);
      await viewer.shows(0.2, 3);
      assert.notEqual(await viewer.mode(), "direct");
      const asked = sessionsAsked(page);
      await viewer.tune(await choiceCalled(page, "subtitle", "A file beside the film"));
      assert.deepEqual(asked, [], "nothing is asked for anew");
      for (const [seconds, words] of [[3, ["two seconds"]], [40, []], [31, ["half a minute"]]]) {
        await pausedAt(page, seconds);
        await says(page, words);
      }
      await page.reload();
      await viewer.curtain();
      await page.locator("#curtain-actions button").first().click();
      await viewer.shows(0.5, 3);
      await pausedAt(page, 31);
      await says(page, ["half a minute"]);
      await viewer.tune("subtitle-off");
      await says(page, []);
      await page.reload();
      await viewer.curtain();
      await page.locator("#curtain-actions button").first().click();
      await viewer.shows(25, 3);
      await pausedAt(page, 31);
      await says(page, []);
      await finish(viewer);
    });
  });
}

test("subtitles of a file that is sent as it is are shown at its own times, with the keyboard alone", async () => {
  const viewer = await openViewer(browser, server);
  const { page } = viewer;
  const item = await server.item("ass-cues.mkv");
  await viewer.watch(item.id);
  await viewer.shows(0.2, 3);
  assert.equal(await viewer.mode(), "direct");
  await page.keyboard.press("i");
  await page.locator("#tune-dialog[open]").waitFor();
  for (let n = 0; n < 10 && !(await page.evaluate(() => document.activeElement.name === "subtitle")); n += 1) await page.keyboard.press("Tab");
  await page.keyboard.press("ArrowDown");
  assert.notEqual(await page.evaluate(() => document.activeElement.id), "subtitle-off", "the arrow goes to the track and chooses it");
  await page.keyboard.press("Escape");
  await page.locator("#tune-dialog:not([open])").waitFor({ state: "attached" });
  await pausedAt(page, 41);
  await says(page, ["CUE40"]);
  await pausedAt(page, 45);
  await says(page, []);
  await pausedAt(page, 50.5);
  await says(page, ["CUE50"]);
  await finish(viewer);
});

test("another sound is heard while the encoder of the picture goes on, and after a seek and a reload of the page it can be chosen again", async () => {
  const viewer = await openViewer(browser, server);
  const { page } = viewer;
  await viewer.watch((await server.item("three-languages.mkv")).id);
  await viewer.shows(0.2, 2);
  await viewer.tune("quality-240");
  await until("the encoded playback", async () => (await viewer.mode()) === "encode");
  await viewer.shows(1, 3);
  const asked = sessionsAsked(page);
  const before = await server.encoders("libx264");
  await viewer.tune(await choiceCalled(page, "audio", "Japanese"));
  await heard(page, 900);
  const during = await server.encoders("libx264");
  assert.deepEqual(during.filter((encoder) => !before.includes(encoder)), [], "no second encoder of the picture starts");
  assert.deepEqual(asked, [], "nothing is asked for anew");
  await viewer.seek(20);
  await viewer.shows(20, 3);
  await heard(page, 900);
  await viewer.tune(await choiceCalled(page, "audio", "French"));
  await heard(page, 600);
  assert.deepEqual(asked, [], "nor after a seek");
  await page.reload();
  await viewer.curtain();
  await page.locator("#curtain-actions button").first().click();
  await viewer.shows(20, 2);
  await finish(viewer);
});

test("another quality is shown without a new playback, stays over a seek, and automatic takes over again", async () => {
  const viewer = await openViewer(browser, server);
  const { page } = viewer;
  await viewer.watch((await server.item("interlaced.ts")).id);
  await viewer.shows(0.2, 3);
  const offered = await qualitiesOffered(page);
  const heights = offered.filter((id) => /^\d+$/.test(id)).map(Number);
  assert.ok(heights.length > 1, `several qualities are offered: ${offered}`);
  const asked = sessionsAsked(page);
  const lowest = Math.min(...heights);
  await viewer.tune(`quality-${lowest}`);
  await page.waitForFunction((height) => document.getElementById("video").videoHeight === height, lowest);
  await viewer.seek(15);
  await viewer.shows(15, 3);
  assert.equal(await page.evaluate(() => document.getElementById("video").videoHeight), lowest);
  const highest = Math.max(...heights);
  await viewer.tune(`quality-${highest}`);
  await viewer.seek(8);
  await page.waitForFunction((height) => document.getElementById("video").videoHeight === height, highest);
  await viewer.tune("quality-auto");
  await viewer.shows((await viewer.position()) + 0.5, 3);
  assert.deepEqual(asked, [], "one playback has them all");
  await finish(viewer);
});

/** Every later request for a new playback. */
function sessionsAsked(page) {
  const asked = [];
  page.on("request", (request) => {
    if (request.method() === "POST" && request.url().endsWith("/ether/api/sessions")) asked.push(request.postData());
  });
  return asked;
}

/** Pauses and goes to `seconds`; resolves once the picture of then is there. */
async function pausedAt(page, seconds) {
  await page.evaluate((to) => {
    const video = document.getElementById("video");
    video.pause();
    const bar = document.getElementById("seek");
    bar.value = to;
    bar.dispatchEvent(new Event("input", { bubbles: true }));
    bar.dispatchEvent(new Event("change", { bubbles: true }));
  }, seconds);
  await page.waitForFunction((to) => {
    const video = document.getElementById("video");
    return !video.seeking && video.readyState >= 2 && Math.abs(video.currentTime - to) < 0.3;
  }, seconds);
}

/** Waits until exactly these words stand over the picture. */
async function says(page, words) {
  const said = () => [...document.getElementById("video").textTracks].filter((track) => track.mode === "showing")
    .flatMap((track) => [...(track.activeCues ?? [])].map((cue) => cue.text.replace(/<[^>]*>/g, "").trim()));
  try {
    await until(`the words ${JSON.stringify(words)}`, async () => JSON.stringify(await page.evaluate(said)) === JSON.stringify(words), 10_000);
  } catch (error) {
    const tracks = await page.evaluate(() => [...document.getElementById("video").textTracks].map((track) => `${track.mode} ${track.label} ${track.cues?.length}`));
    throw new Error(`${error.message}; ${JSON.stringify(tracks)}`);
  }
}

/** The choice of a group that has these words on it. */
async function choiceCalled(page, group, words) {
  await page.keyboard.press("i");
  await page.locator("#tune-dialog[open]").waitFor();
  const id = await page.locator(`#${group}-list label`, { hasText: words }).getAttribute("for");
  await page.keyboard.press("Escape");
  return id;
}

async function qualitiesOffered(page) {
  await page.keyboard.press("i");
  await page.locator("#tune-dialog[open]").waitFor();
  const offered = await page.evaluate(() => [...document.querySelectorAll("#quality-list input")].map((input) => input.value));
  await page.keyboard.press("Escape");
  return offered;
}

/** Waits until a tone of `hertz` is what is heard. */
function heard(page, hertz) {
  return page.waitForFunction((hertz) => {
    const video = document.getElementById("video");
    if (!window.analyser) {
      const audio = new AudioContext();
      audio.resume();
      window.analyser = audio.createAnalyser();
      window.analyser.fftSize = 8192;
      audio.createMediaElementSource(video).connect(window.analyser);
    }
    const bins = new Float32Array(window.analyser.frequencyBinCount);
    window.analyser.getFloatFrequencyData(bins);
    const loudest = bins.reduce((best, level, n) => (level > bins[best] ? n : best), 1);
    return bins[loudest] > -60 && Math.abs((loudest * window.analyser.context.sampleRate) / window.analyser.fftSize - hertz) < 60;
  }, hertz);
}

async function finish(viewer) {
  await viewer.page.locator("#stop").click();
  assert.match(await viewer.curtain(), /Stopped at/);
  await server.noEncoder();
  await viewer.close();
}
