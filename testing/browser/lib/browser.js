// Real Chromium, and a viewer in it: opens the page, signs in, watches. A viewer's complaints (uncaught errors,
// refused styles or scripts) fail the test that made them.

import assert from "node:assert/strict";

import { chromium } from "playwright-core";

const ARGUMENTS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

/** One browser per test file; every viewer in it has storage and a cache of its own. */
export function openBrowser() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    headless: true,
    args: ARGUMENTS,
  });
}

export const PHONE = { width: 360, height: 740 };
export const DESK = { width: 1280, height: 800 };

/** A new viewer; `signedIn: false` starts at the sign-in form. */
export async function openViewer(browser, server, { size = DESK, scheme = "light", signedIn = true, player = null, touch = false } = {}) {
  const context = await browser.newContext({ viewport: size, colorScheme: scheme, hasTouch: touch });
  context.setDefaultTimeout(30_000);
  const page = await context.newPage();
  const viewer = new Viewer(server, context, page, player);
  if (signedIn) {
    await context.addInitScript((token) => {
      if (!sessionStorage.getItem("test.signed-in")) localStorage.setItem("ether.token", token);
      sessionStorage.setItem("test.signed-in", "yes");
    }, server.token);
  }
  return viewer;
}

export class Viewer {
  complaints = [];

  constructor(server, context, page, player) {
    this.server = server;
    this.context = context;
    this.page = page;
    this.player = player;
    page.on("pageerror", (error) => this.complaints.push(`uncaught: ${error.stack ?? error.message}`));
    page.on("console", (message) => {
      if (/Content Security Policy|Refused to/i.test(message.text())) this.complaints.push(message.text());
    });
  }

  address(hash = "#/") {
    return `${this.server.url}/${this.player ? `?player=${this.player}` : ""}${hash}`;
  }

  /** Opens the library and waits for its first card. */
  async openLibrary() {
    await this.page.goto(this.address());
    await this.page.locator("#grid .card").first().waitFor();
  }

  /** Opens one item by its address, from its start: what an earlier test watched is forgotten first. */
  async watch(id) {
    await this.server.api("PUT", `/ether/api/items/${id}/position`, { positionMs: 0, finished: false });
    await this.reopen(id);
  }

  /** Opens one item by its address; where it was left is offered. */
  async reopen(id) {
    if (!this.page.url().startsWith(this.server.url)) await this.page.goto(this.address());
    await this.page.evaluate((hash) => { location.hash = hash; }, `#/watch/${id}`);
    await this.page.locator("#watch:not([hidden])").waitFor();
    await this.page.waitForFunction(() => document.getElementById("watch-title").textContent !== "");
  }

  /** Waits until `frames` pictures have been shown that lie after `after` seconds; returns the last one's time. */
  async shows(after, frames = 5) {
    const shown = await this.page.evaluate(({ after, frames, limit }) => new Promise((resolve) => {
      const video = document.getElementById("video");
      let left = frames;
      let last = -1;
      const curtain = () => {
        const open = document.querySelector("#curtain.is-problem:not([hidden])");
        return open ? open.innerText : null;
      };
      const timer = setTimeout(() => done({ problem: curtain() ?? `nothing shown; at ${video.currentTime} s, ready state ${video.readyState}, ${video.paused ? "paused" : "playing"}: ${document.getElementById("spinner-words").textContent}` }), limit);
      const watch = setInterval(() => { if (curtain()) done({ problem: curtain() }); }, 100);
      const done = (result) => {
        clearTimeout(timer);
        clearInterval(watch);
        resolve(result);
      };
      const frame = (_, { mediaTime }) => {
        if (mediaTime >= after && mediaTime !== last) left -= 1;
        last = mediaTime;
        if (left <= 0) done({ mediaTime });
        else video.requestVideoFrameCallback(frame);
      };
      video.requestVideoFrameCallback(frame);
    }), { after, frames, limit: 30_000 });
    assert.equal(shown.problem, undefined, `the picture should move beyond ${after} s`);
    return shown.mediaTime;
  }

  /** Waits until sound without a picture has moved on by a second beyond `after`. */
  async sounds(after) {
    await this.page.waitForFunction((from) => document.getElementById("video").currentTime > from + 1, after);
  }

  position() {
    return this.page.evaluate(() => document.getElementById("video").currentTime);
  }

  /** Moves the seek bar to `seconds`, as letting go of it does. */
  async seek(seconds) {
    await this.page.evaluate((to) => {
      const bar = document.getElementById("seek");
      bar.value = to;
      bar.dispatchEvent(new Event("input", { bubbles: true }));
      bar.dispatchEvent(new Event("change", { bubbles: true }));
    }, seconds);
  }

  /** Seeks a paused film to `seconds` by the seek bar; the mean brightness, 0 to 255, of the picture shown there. */
  brightnessAt(seconds) {
    return this.page.evaluate(({ seconds, limit }) => new Promise((resolve, reject) => {
      const video = document.getElementById("video");
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [32, 18];
      const pen = canvas.getContext("2d", { willReadFrequently: true });
      const timer = setTimeout(() => reject(new Error(`no picture of ${seconds} s within ${limit} ms; at ${video.currentTime} s`)), limit);
      const frame = (_, { mediaTime }) => {
        if (Math.abs(mediaTime - seconds) > 0.06) {
          video.requestVideoFrameCallback(frame);
          return;
        }
        clearTimeout(timer);
        pen.drawImage(video, 0, 0, 32, 18);
        const { data } = pen.getImageData(0, 0, 32, 18);
        let sum = 0;
        for (let i = 0; i < data.length; i += 4) sum += data[i] * 0.2126 + data[i + 1] * 0.7152 + data[i + 2] * 0.0722;
        resolve(sum / (32 * 18));
      };
      video.requestVideoFrameCallback(frame);
      const bar = document.getElementById("seek");
      bar.value = seconds;
      bar.dispatchEvent(new Event("input", { bubbles: true }));
      bar.dispatchEvent(new Event("change", { bubbles: true }));
    }), { seconds, limit: 30_000 });
  }

  /** The words on the curtain, once there is one. */
  async curtain() {
    await this.page.locator("#curtain:not([hidden])").waitFor();
    return this.page.locator("#curtain").innerText();
  }

  /** The mode that the page shows for the current playback: direct, copy or encode. */
  async mode() {
    await this.page.locator("#watch-decision:not([hidden])").waitFor();
    const word = await this.page.locator("#watch-decision .decision-mode strong").innerText();
    return { Original: "direct", Copied: "copy", Converted: "encode" }[word];
  }

  chooseQuality(id) {
    return this.tune(`quality-${id}`);
  }

  /** Opens the dialog, chooses what has this id there, and closes it. */
  async tune(id) {
    await this.page.keyboard.press("i");
    await this.page.locator("#tune-dialog[open]").waitFor();
    await this.page.locator(`#${id}`).check();
    await this.page.locator("#tune-dialog header button").click();
  }

  /** How far the document is wider than the window, in pixels. */
  overflow() {
    return this.page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  }

  async close() {
    await this.context.close();
    assert.deepEqual(this.complaints, [], "the page should run without errors and within its policy");
  }
}
