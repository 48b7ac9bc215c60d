// What becomes of encoders, as whoever watches sees it: why this one, and a bound on its space.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { openBrowser, openViewer } from "../lib/browser.js";
import { startEther } from "../lib/ether.js";
import { folderOf } from "../lib/media.js";
import { until } from "../lib/until.js";

const MIB = 1024 * 1024;

let browser;

before(async () => {
  browser = await openBrowser();
});

after(() => browser?.close());

/** Tells a story on a server of its own. */
async function on(films, environment, story) {
  const server = await startEther({ folder: await folderOf(films), environment });
  try {
    await server.scanned();
    const viewer = await openViewer(browser, server);
    await story(server, viewer);
    await viewer.close();
    await server.noEncoder();
  } finally {
    await server.stop();
  }
}

test("a viewer reads what encodes the picture, and why the device that was wished for does not", async () => {
  await on(["interlaced.ts"], { ETHER_HWACCEL: "vaapi" }, async (server, viewer) => {
    const { page } = viewer;
    await viewer.watch((await server.item("interlaced.ts")).id);
    await viewer.shows(0.2, 3);
    await page.keyboard.press("i");
    const row = (name) => page.locator("#numbers div", { hasText: name }).locator("dd");
    await row("Encoded by").waitFor();
    assert.match(await row("Encoded by").innerText(), /processor|software/i);
    assert.match(await row("Because").innerText(), /VA-?API|device|render/i);
    await page.keyboard.press("Escape");
    await page.locator("#stop").click();
  });
});

test("a film of more bytes than there is space for plays to its end over a slow line", { skip: process.env.ETHER_SOAK ? false : "told in the long tier" }, async () => {
  await on(["moov-at-end.mp4"], { ETHER_SCRATCH: "64" }, async (server, viewer) => {
    const { page } = viewer;
    await viewer.watch((await server.item("moov-at-end.mp4")).id);
    await viewer.shows(0, 2);
    const line = await page.context().newCDPSession(page);
    await line.send("Network.enable");
    // The film has 12 Mbit/s, and is watched twice as fast as it was made.
    await line.send("Network.emulateNetworkConditions", { offline: false, latency: 20, downloadThroughput: 4 * MIB, uploadThroughput: MIB });
    await viewer.chooseQuality("original");
    await until("the copied playback", async () => (await viewer.mode()) === "copy");
    await page.evaluate(() => { document.getElementById("video").playbackRate = 2; });
    const seen = [];
    await until("the end of the film", async () => {
      const { sessions } = (await server.api("GET", "/ether/api/sessions")).body;
      for (const { encoder } of sessions) if (encoder) seen.push(encoder);
      return page.evaluate(() => document.getElementById("video").ended);
    }, 120_000);
    assert.ok(seen.length > 10);
    const most = Math.max(...seen.map(({ scratchUsed }) => scratchUsed));
    assert.ok(most > MIB && most <= 64 * MIB, `${most} bytes of scratch`);
    assert.ok(seen.some(({ state }) => state === "held-back"), "the encoder is held back, not let run ahead");
  });
});
