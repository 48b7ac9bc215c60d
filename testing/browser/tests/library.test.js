// The library: pictures, search, what could not be read, new files, ten thousand titles, small and wide, light
// and dark.

import assert from "node:assert/strict";
import fs from "node:fs/promises";
import path from "node:path";
import { after, before, test } from "node:test";

import { DESK, openViewer, PHONE } from "../lib/browser.js";
import { bring, lay, repository } from "../lib/media.js";
import { closeStage, openStage } from "../lib/stage.js";

const ODD_NAME = "-it's \"50% off\" & Ünï — été.mp4";

let server;
let browser;

before(async () => {
  ({ server, browser } = await openStage(["interlaced.ts", "ntsc.mkv", "upright.mp4"], async (folder) => {
    await bring(path.join(folder, "upright.mp4"), folder, ODD_NAME);
    await lay(folder, "broken.mkv", Buffer.alloc(4096, 7));
    await lay(folder, "empty.mp4", "");
  }));
});

after(() => closeStage({ server, browser }));

test("every film has a picture that was made from it", async () => {
  const viewer = await openViewer(browser, server);
  await viewer.openLibrary();
  await viewer.page.waitForFunction(() => {
    const pictures = [...document.querySelectorAll("#grid .picture img")];
    return pictures.length >= 4 && pictures.every((img) => img.complete && img.naturalWidth > 0);
  });
  // Bars in several colours, so not a grey square that merely has the right size.
  const colours = await viewer.page.evaluate(() => [...document.querySelectorAll("#grid .picture img")].map((img) => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [8, 8];
    const pen = canvas.getContext("2d");
    pen.drawImage(img, 0, 0, 8, 8);
    const { data } = pen.getImageData(0, 0, 8, 8);
    return new Set(Array.from({ length: 64 }, (_, n) => data.slice(n * 4, n * 4 + 3).map((part) => part >> 6).join())).size;
  }));
  assert.ok(colours.every((count) => count >= 4), `distinct colours per picture: ${colours}`);
  await viewer.close();
});

test("titles are found by words in any order, without accents, and a search that finds nothing says so", async () => {
  const viewer = await openViewer(browser, server);
  const { page } = viewer;
  await viewer.openLibrary();
  await page.keyboard.press("/");
  await page.keyboard.type("ete uni");
  await page.waitForFunction(() => document.querySelectorAll("#grid .card").length === 1);
  assert.match(await page.locator("#grid .card a").getAttribute("title"), /50% off/);
  await page.keyboard.type(" nowhere");
  await page.locator("#empty:not([hidden])").waitFor();
  assert.match(await page.locator("#empty").innerText(), /nowhere/);
  await page.getByRole("button", { name: "Show everything" }).click();
  await page.waitForFunction(() => document.querySelectorAll("#grid .card").length >= 4);
  await viewer.close();
});

test("a file with an awkward name plays", async () => {
  const viewer = await openViewer(browser, server);
  await viewer.openLibrary();
  await viewer.page.locator("#grid .card a", { hasText: /50% off/ }).click();
  await viewer.shows(0.2, 3);
  await viewer.close();
});

test("files that could not be used are listed with their reason", async () => {
  const viewer = await openViewer(browser, server);
  await viewer.openLibrary();
  await viewer.page.locator("#problems summary").click();
  const words = await viewer.page.locator("#problems-list").innerText();
  assert.match(words, /broken\.mkv[\s\S]*(damaged|not a film)/);
  assert.match(words, /empty\.mp4[\s\S]*empty/);
  await viewer.close();
});

test("a film that is copied into the folder appears by itself, and one that is removed goes", async () => {
  const viewer = await openViewer(browser, server);
  await viewer.openLibrary();
  const [clip] = [path.join(repository, "target/clips/upright.mp4")];
  const added = await bring(clip, server.folder, "newcomer.mp4");
  // The page asks now and then by itself; coming back to it asks at once.
  const refresh = () => viewer.page.evaluate(() => dispatchEvent(new Event("online")));
  const card = viewer.page.locator("#grid .card a[title='newcomer.mp4']");
  await eventually(card, "visible", refresh);
  await fs.rm(added);
  await eventually(card, "detached", refresh);
  await viewer.close();
});

for (const [name, size] of [["phone", PHONE], ["desk", DESK]]) {
  for (const scheme of ["light", "dark"]) {
    test(`on a ${name} in ${scheme} nothing is cut off and every word can be read`, async () => {
      const viewer = await openViewer(browser, server, { size, scheme });
      const { page } = viewer;
      await viewer.openLibrary();
      assert.ok((await viewer.overflow()) <= 0, "the library should not scroll sideways");
      assert.deepEqual(await outside(page), [], "controls beyond the edge");
      assert.equal(await isDark(page), scheme === "dark");
      assert.deepEqual(await faint(page), [], "text with too little contrast");

      await viewer.watch((await server.item("ntsc.mkv")).id);
      await viewer.shows(0.2, 2);
      assert.ok((await viewer.overflow()) <= 0, "the player should not scroll sideways");
      assert.deepEqual(await faint(page), [], "text with too little contrast");
      assert.deepEqual(await outside(page), [], "controls beyond the edge");
      const picture = await page.locator("#video").boundingBox();
      assert.ok(picture.width <= size.width && picture.height > 150);
      await page.keyboard.press("i");
      await page.locator("#tune-dialog[open]").waitFor();
      const sheet = await page.locator("#tune-dialog").boundingBox();
      assert.ok(sheet.x >= 0 && sheet.x + sheet.width <= size.width, "the dialog should fit");
      await viewer.close();

      const stranger = await openViewer(browser, server, { size, scheme, signedIn: false });
      await stranger.page.goto(stranger.address());
      await stranger.page.locator("#sign-in:not([hidden])").waitFor();
      assert.ok((await stranger.overflow()) <= 0);
      assert.deepEqual(await faint(stranger.page), [], "text with too little contrast");
      await stranger.close();
    });
  }
}

test("every control has a name and says what it is", async () => {
  const viewer = await openViewer(browser, server);
  await viewer.openLibrary();
  const nameless = () => viewer.page.evaluate(() => [...document.querySelectorAll("button, a, input, select, summary, [role]")]
    .filter((node) => node.checkVisibility())
    .filter((node) => !(node.getAttribute("aria-label") || node.getAttribute("aria-labelledby") || node.innerText?.trim() || node.labels?.length || node.getAttribute("aria-live")))
    .map((node) => node.outerHTML.slice(0, 120)));
  assert.deepEqual(await nameless(), []);
  await viewer.watch((await server.item("ntsc.mkv")).id);
  await viewer.shows(0.2, 2);
  assert.deepEqual(await nameless(), []);
  assert.match(await viewer.page.locator("#seek").getAttribute("aria-valuetext"), /second.* of 2 minutes/);
  await viewer.close();
});

test("ten thousand titles scroll, sort and are searched with few cards in the document", async () => {
  const viewer = await openViewer(browser, server);
  const { page } = viewer;
  // The real answer, its items repeated; everything else is the server's own.
  await page.route("**/ether/api/library", async (route) => {
    const response = await route.fetch();
    const body = await response.json();
    const [first] = body.items;
    body.items = Array.from({ length: 10_000 }, (_, n) => ({ ...first, id: `${first.id}-${n}`, title: `Film ${n + 1}`, file: `${n + 1}.mkv`, durationMs: 1000 * (n + 1) }));
    await route.fulfill({ response, json: body });
  });
  await viewer.openLibrary();
  assert.equal((await page.locator("#count").innerText()).replace(/\D/g, ""), "10000");
  const few = async () => assert.ok((await page.locator("#grid .card").count()) < 150);
  await few();
  await page.locator("#grid .card a").first().focus();
  await page.keyboard.press("End");
  await page.waitForFunction(() => document.activeElement.getAttribute("aria-label")?.startsWith("Film 10000,"));
  assert.equal(await page.locator("#grid .card:focus-within").getAttribute("aria-posinset"), "10000");
  const box = await page.locator("#grid .card:focus-within").boundingBox();
  assert.ok(box.y >= 0 && box.y + box.height <= DESK.height, "the last card should be in the window");
  await few();
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Home");
  await page.waitForFunction(() => document.activeElement.getAttribute("aria-label")?.startsWith("Film 1,"));
  await page.locator("#sort").selectOption("long");
  await page.waitForFunction(() => document.querySelector("#grid .card .name").textContent === "Film 10000");
  await page.locator("#search").fill("9876");
  await page.waitForFunction(() => document.querySelectorAll("#grid .card").length === 1);
  await viewer.close();
});

test("a forged title is text and nothing else", async () => {
  const viewer = await openViewer(browser, server);
  await viewer.page.route("**/ether/api/library", async (route) => {
    const response = await route.fetch();
    const body = await response.json();
    body.items[0].title = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
    await route.fulfill({ response, json: body });
  });
  await viewer.openLibrary();
  await viewer.page.locator("#grid .name", { hasText: "<script>" }).waitFor();
  assert.equal(await viewer.page.title(), "ether");
  await viewer.close();
});

/** Waits for a card, nudging the page to ask the server meanwhile. */
async function eventually(card, state, nudge) {
  const nudging = setInterval(() => nudge().catch(() => {}), 500);
  try {
    await card.waitFor({ state, timeout: 30_000 });
  } finally {
    clearInterval(nudging);
  }
}

function isDark(page) {
  return page.evaluate(() => {
    const [r, g, b] = getComputedStyle(document.documentElement).backgroundColor.match(/\d+/g).map(Number);
    return r + g + b < 384;
  });
}

/** Visible things to press that are not wholly within the window's width. */
function outside(page) {
  return page.evaluate(() => [...document.querySelectorAll("button, a, input, select, summary")]
    .filter((node) => node.checkVisibility() && !node.closest(".chips, .row, .skip"))
    .filter((node) => {
      const { left, right, width } = node.getBoundingClientRect();
      return width > 0 && (left < -8 || right > innerWidth + 8);
    })
    .map((node) => node.id || node.outerHTML.slice(0, 80)));
}

/** Visible texts on plain grounds whose contrast is under 4.5 to 1 (3 to 1 for large ones), with the ratio. */
function faint(page) {
  return page.evaluate(() => {
    const parse = (text) => {
      const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
      return text.startsWith("color(srgb") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
    };
    const light = ([r, g, b]) => {
      const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
      return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const over = (top, ground) => top.slice(0, 3).map((value, n) => value * top[3] + ground[n] * (1 - top[3]));
    const groundOf = (node) => {
      const layers = [];
      for (let each = node; each; each = each.parentElement) {
        if (each.matches("#stage, .picture")) return null; // over a moving picture there is no one ground
        const colour = parse(getComputedStyle(each).backgroundColor);
        layers.push(colour);
        if (colour[3] === 1) break;
      }
      return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || !node.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || node.closest("template, .unseen, noscript, .skip, :disabled")) continue;
      const ground = groundOf(node);
      if (!ground) continue;
      const style = getComputedStyle(node);
      const ink = over(parse(style.color), ground);
      const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
      const ratio = (high + 0.05) / (low + 0.05);
      const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
      if (ratio < (large ? 3 : 4.5)) found.push(`${node.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
    }
    return found;
  });
}
