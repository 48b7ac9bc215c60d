// Players that nobody here wrote, in a page of another origin: each plays each protocol that it knows from the start,
// after seeks into what no encoder has made yet, in another quality and another language, and to the end, without one
// error event.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { openBrowser } from "../lib/browser.js";
import { freePort, startEther } from "../lib/ether.js";
import { folderOf } from "../lib/media.js";
import { openPlayer, servePlayers, shows, troubles } from "../lib/players.js";

const LONG = process.env.ETHER_SOAK ? 10 : 2;

let server;
let browser;
let pages;

before(async () => {
  pages = servePlayers(await freePort());
  server = await startEther({
    folder: await folderOf(["ntsc.mkv", "three-languages.mkv", "vfr.mkv", "irregular-keyframes.mkv"]),
    environment: { ETHER_ORIGINS: pages.origin, ETHER_CAPACITY: "16" },
  });
  await server.scanned();
  browser = await openBrowser();
});

after(async () => {
  await browser?.close();
  await server?.stop();
  pages?.close();
});

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
      const { page, id, length } = await openPlayer({ browser, server, origin: pages.origin }, player, file, { segmentSeconds: 3, ...wish });
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
      await goesOn(page, "another quality");
      if (file === "three-languages.mkv") {
        assert.equal(sounds, 3, "every language is offered");
        await page.evaluate(() => window.chooseSound(2));
        await goesOn(page, "another language");
      }
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

/** Each change is seen by itself before the next, as a person makes them. */
async function goesOn(page, change) {
  const at = await page.evaluate(() => document.getElementById("video").currentTime);
  await shows(page, at + 1.5, `after the change to ${change}`);
}
