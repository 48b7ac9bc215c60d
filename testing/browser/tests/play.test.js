// Watching: files that are copied and files that are encoded, seeking across encoder restarts, stopping. Once
// through Media Source with hls.js and once through the browser's own HLS, which fetch quite differently.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { openViewer } from "../lib/browser.js";
import { closeStage, openStage } from "../lib/stage.js";
import { until } from "../lib/until.js";

let server;
let browser;

before(async () => {
  ({ server, browser } = await openStage(["flash-beep.mkv", "interlaced.ts", "ntsc.mkv", "three-languages.mkv", "upright.mp4"]));
});

after(() => closeStage({ server, browser }));

for (const player of ["mse", "native"]) {
  describe(`played by ${player}`, () => {
    test("a film that the browser cannot decode is encoded, and its picture moves", async () => {
      const viewer = await openViewer(browser, server, { player });
      await viewer.watch((await server.item("interlaced.ts")).id);
      await viewer.shows(1, 10);
      assert.equal(await viewer.mode(), "encode");
      assert.match(await viewer.page.locator("#watch-decision").innerText(), /MPEG-2|mpeg2/i, "the reason should name what cannot be shown");
      const engine = await engineName(viewer);
      assert.match(engine, player === "mse" ? /hls\.js/ : /own HLS/);
      await stopAndSeeNothingLeft(viewer);
    });

    test("a film that only needs another wrapping is copied, and its picture moves", async () => {
      const viewer = await openViewer(browser, server, { player });
      await viewer.watch((await server.item("ntsc.mkv")).id);
      // Matroska plays as a file in this browser; never converting the picture still asks for segments.
      await viewer.shows(0, 2);
      await viewer.chooseQuality("original");
      await until("the copied playback", async () => (await viewer.mode()) === "copy");
      const from = await viewer.position();
      await viewer.shows(from + 1, 10);
      await stopAndSeeNothingLeft(viewer);
    });

    test("seeking far ahead and back shows the picture of that time, across encoder restarts", async () => {
      const viewer = await openViewer(browser, server, { player });
      // White for the first fifth of every tenth second, black otherwise: a wrong timeline is seen at once.
      await viewer.watch((await server.item("flash-beep.mkv")).id);
      await viewer.shows(0, 2);
      await viewer.chooseQuality("240");
      await until("the encoded playback", async () => (await viewer.mode()) === "encode");
      await viewer.shows(1, 5);
      for (const second of [100, 20, 70]) {
        await viewer.page.evaluate(() => document.getElementById("video").pause());
        for (const [at, white] of [[second + 0.1, true], [second + 4, false]]) {
          const light = await viewer.brightnessAt(at);
          assert.ok(white ? light > 180 : light < 60, `at ${at} s the picture should be ${white ? "white" : "black"}, its brightness is ${light}`);
        }
        await viewer.page.keyboard.press("k");
        await viewer.shows(second + 4, 5);
      }
      await stopAndSeeNothingLeft(viewer);
    });

    test("the end is reached, said, and remembered as seen", async () => {
      const viewer = await openViewer(browser, server, { player });
      const { id } = await server.item("interlaced.ts");
      await viewer.watch(id);
      await viewer.shows(0, 2);
      await viewer.seek(28);
      await viewer.shows(28, 3);
      assert.match(await viewer.curtain(), /The end/);
      await until("the item to count as seen", async () => (await server.api("GET", `/ether/api/items/${id}`)).body.finished);
      await server.noEncoder();
      await viewer.close();
    });
  });
}

test("a file that the browser plays by itself is sent as it is, and seeks", async () => {
  const viewer = await openViewer(browser, server);
  const { id } = await server.item("upright.mp4");
  await viewer.watch(id);
  await viewer.shows(0.5, 5);
  assert.equal(await viewer.mode(), "direct");
  const { sessions } = (await server.api("GET", "/ether/api/sessions")).body;
  const mine = sessions.filter((session) => session.item === id && session.state !== "ended");
  assert.deepEqual(mine.map(({ state, encoder }) => [state, encoder]), [["idle", null]], "sending a file needs no encoder");
  await viewer.seek(7);
  await viewer.shows(7, 5);
  await stopAndSeeNothingLeft(viewer);
});

test("another audio track is heard from the same place, in the same session", async () => {
  const viewer = await openViewer(browser, server);
  const item = await server.item("three-languages.mkv");
  await viewer.watch(item.id);
  await viewer.shows(0, 2);
  // As a file it has one sound for this browser; in segments all of them are there.
  await viewer.chooseQuality("original");
  await until("the copied playback", async () => (await viewer.mode()) === "copy");
  await viewer.shows((await viewer.position()) + 1, 2);
  await viewer.page.keyboard.press("i");
  const asked = [];
  viewer.page.on("request", (request) => {
    if (request.method() === "POST" && request.url().endsWith("/ether/api/sessions")) asked.push(request.url());
  });
  await viewer.page.locator("#audio-list").getByText("Japanese").click();
  await viewer.page.keyboard.press("Escape");
  await viewer.shows(2, 5);
  // 300, 600 and 900 Hz tell the tracks apart.
  const pitch = await heardPitch(viewer);
  assert.ok(Math.abs(pitch - 900) < 60, `the Japanese track is a tone of 900 Hz, heard was ${pitch} Hz`);
  assert.deepEqual(asked, [], "nothing is asked for anew");
  await stopAndSeeNothingLeft(viewer);
});

test("the position outlives a reload, and resuming goes there", async () => {
  const viewer = await openViewer(browser, server);
  const { id } = await server.item("ntsc.mkv");
  await viewer.watch(id);
  await viewer.shows(0, 2);
  await viewer.seek(63);
  await viewer.shows(63.5, 3);
  await viewer.page.reload();
  const words = await viewer.curtain();
  assert.match(words, /Resume at 1:0[3-9]/);
  await viewer.page.locator("#curtain-actions button").first().click();
  const shown = await viewer.shows(62, 3);
  assert.ok(shown < 75, `resuming should begin near 63 s, not at ${shown} s`);
  const kept = (await server.item("ntsc.mkv")).positionMs;
  assert.ok(kept >= 63_000 && kept < 75_000, `kept was ${kept} ms`);
  await stopAndSeeNothingLeft(viewer);
});

test("closing the page ends the playback and its encoder", async () => {
  const viewer = await openViewer(browser, server);
  const { id } = await server.item("flash-beep.mkv");
  await viewer.watch(id);
  await viewer.shows(0, 2);
  await viewer.chooseQuality("240");
  await until("the encoded playback", async () => (await viewer.mode()) === "encode");
  await viewer.shows(1, 3);
  const open = async () => (await server.api("GET", "/ether/api/sessions")).body.sessions.filter((session) => session.item === id && session.state !== "ended");
  assert.equal((await open()).length, 1);
  await viewer.page.close({ runBeforeUnload: true });
  // Far sooner than an abandoned playback would be given up.
  await until("the playback to end", async () => (await open()).length === 0, 10_000);
  await server.noEncoder();
  await viewer.close();
});

test("everything works from the keyboard", async () => {
  const viewer = await openViewer(browser, server);
  const { page } = viewer;
  const { id } = await server.item("flash-beep.mkv");
  await server.api("PUT", `/ether/api/items/${id}/position`, { positionMs: 0, finished: false });
  await viewer.openLibrary();
  await page.keyboard.press("/");
  await page.keyboard.type("flash");
  await page.locator("#grid .card").nth(1).waitFor({ state: "detached" });
  await page.keyboard.press("Tab");
  while (!(await page.evaluate(() => document.activeElement.matches(".card a")))) await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.locator("#watch:not([hidden])").waitFor();
  await viewer.shows(0.2, 3);

  await page.keyboard.press("Space");
  await page.waitForFunction(() => document.getElementById("video").paused);
  const still = await viewer.position();
  await page.keyboard.press("ArrowRight");
  await landed(viewer, still + 5);
  await page.keyboard.press("l");
  await landed(viewer, still + 15);
  await page.keyboard.press("j");
  await page.keyboard.press("ArrowLeft");
  await landed(viewer, still);
  await page.keyboard.press("5");
  await landed(viewer, 60);
  await page.keyboard.press("Home");
  await landed(viewer, 0);

  await page.keyboard.press("m");
  await page.waitForFunction(() => document.getElementById("video").muted);
  await page.keyboard.press("m");
  const loud = await page.evaluate(() => document.getElementById("video").volume);
  await page.keyboard.press("ArrowDown");
  await page.waitForFunction((before) => document.getElementById("video").volume < before, loud);

  await page.keyboard.press("f");
  await page.waitForFunction(() => document.fullscreenElement?.id === "stage");
  await page.keyboard.press("f");
  await page.waitForFunction(() => document.fullscreenElement === null);

  await page.keyboard.press("?");
  await page.locator("#keys-dialog[open]").waitFor();
  await page.keyboard.press("Escape");
  await page.locator("#keys-dialog:not([open])").waitFor({ state: "attached" });
  assert.equal(await page.locator("#watch").isVisible(), true, "Escape closes the list before it leaves the player");
  await page.keyboard.press("Escape");
  await page.locator("#library:not([hidden])").waitFor();
  assert.match(await page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? ""), /flash/i, "the focus should be back on the film");
  await server.noEncoder();
  await viewer.close();
});

test("a browser that starts no sound by itself offers a button", async () => {
  const viewer = await openViewer(browser, server);
  await viewer.page.addInitScript(() => {
    const play = HTMLMediaElement.prototype.play;
    let refused = false;
    HTMLMediaElement.prototype.play = function () {
      if (refused) return play.call(this);
      refused = true;
      return Promise.reject(new DOMException("no gesture", "NotAllowedError"));
    };
  });
  await viewer.watch((await server.item("upright.mp4")).id);
  await viewer.curtain();
  await viewer.page.getByRole("button", { name: "Play", exact: true }).first().click();
  await viewer.shows(0.2, 3);
  await viewer.close();
});

async function stopAndSeeNothingLeft(viewer) {
  await viewer.page.locator("#stop").click();
  assert.match(await viewer.curtain(), /Stopped at/);
  await server.noEncoder();
  await viewer.close();
}

/** The seek is over and the picture of `at` is there. */
async function landed(viewer, at) {
  await viewer.page.waitForFunction((to) => {
    const video = document.getElementById("video");
    return !video.seeking && video.readyState >= 2 && Math.abs(video.currentTime - to) < 0.3;
  }, at);
}

async function engineName(viewer) {
  await viewer.page.keyboard.press("i");
  const row = viewer.page.locator("#numbers div", { hasText: "Played by" }).locator("dd");
  const name = await row.innerText();
  await viewer.page.keyboard.press("Escape");
  return name;
}

/** The strongest frequency of the sound now playing, in hertz. */
function heardPitch(viewer) {
  return viewer.page.evaluate(() => new Promise((resolve) => {
    const video = document.getElementById("video");
    const audio = new AudioContext();
    const analyser = audio.createAnalyser();
    analyser.fftSize = 8192;
    audio.createMediaElementSource(video).connect(analyser);
    const bins = new Float32Array(analyser.frequencyBinCount);
    const look = () => {
      analyser.getFloatFrequencyData(bins);
      const loudest = bins.reduce((best, level, n) => (level > bins[best] ? n : best), 1);
      if (bins[loudest] > -60) resolve((loudest * audio.sampleRate) / analyser.fftSize);
      else requestAnimationFrame(look);
    };
    audio.resume().then(look);
  }));
}
