// Who may watch: the one-use link of a terminal, the owner's token, and everything that is neither.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { openBrowser, openViewer } from "../lib/browser.js";
import { startEther } from "../lib/ether.js";
import { folderOf } from "../lib/media.js";

let folder;
let browser;

before(async () => {
  folder = await folderOf(["upright.mp4"]);
  browser = await openBrowser();
});

after(() => browser?.close());

test("a terminal's link signs in once, and leaves no code in the address", async () => {
  const server = await startEther({ folder, terminal: true });
  try {
    await server.scanned();
    assert.match(server.link, /#code=.+/, "on a terminal the ready line carries a code");
    const viewer = await openViewer(browser, server, { signedIn: false });
    const addresses = [];
    viewer.page.on("request", (request) => addresses.push(request.url(), request.headers().referer ?? ""));
    await viewer.page.goto(server.link);
    await viewer.page.locator("#grid .card").first().waitFor();
    assert.equal(new URL(viewer.page.url()).hash, "#/");
    const code = new URL(server.link).hash.slice("#code=".length);
    assert.ok(!addresses.some((address) => address.includes(code)), "the code should be in no address that was asked for");
    await viewer.page.goBack().catch(() => null);
    assert.ok(!viewer.page.url().includes(code), "going back should not bring the code back");
    await viewer.page.goto(viewer.address());
    await viewer.page.locator("#grid .card").first().waitFor();
    await viewer.close();

    const second = await openViewer(browser, server, { signedIn: false });
    await second.page.goto(server.link);
    await second.page.locator("#sign-in-problem:not([hidden])").waitFor();
    assert.match(await second.page.locator("#sign-in-problem").innerText(), /has been used/);
    await second.close();
  } finally {
    await server.stop();
  }
});

test("in a log the ready line carries no code, and the owner's token signs in", async () => {
  const server = await startEther({ folder });
  try {
    await server.scanned();
    assert.ok(!server.output.includes("code="), "a log must not hold a way in");
    assert.ok(!server.output.includes(server.token));
    const viewer = await openViewer(browser, server, { signedIn: false });
    const { page } = viewer;
    await page.goto(viewer.address());
    assert.equal(await page.evaluate(() => document.activeElement.id), "sign-in-token", "the form should be ready to type into");

    await page.keyboard.type("not-the-token");
    await page.keyboard.press("Enter");
    await page.locator("#sign-in-problem:not([hidden])").waitFor();
    assert.match(await page.locator("#sign-in-problem").innerText(), /was not accepted/);
    assert.equal(await page.evaluate(() => localStorage.getItem("ether.token")), null, "a refused token is not kept");

    await page.locator("#sign-in-token").fill(`  ${server.token}\n`);
    await page.keyboard.press("Enter");
    await page.locator("#grid .card").first().waitFor();
    await page.reload();
    await page.locator("#grid .card").first().waitFor();

    await page.locator("#menu summary").click();
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.locator("#sign-in:not([hidden])").waitFor();
    assert.equal(await page.evaluate(() => localStorage.getItem("ether.token")), null);
    await viewer.close();
  } finally {
    await server.stop();
  }
});

test("a token that is no longer accepted leads back to the form, and from there to where one was going", async () => {
  const server = await startEther({ folder });
  try {
    const { id } = await server.item("upright.mp4");
    const viewer = await openViewer(browser, server, { signedIn: false });
    const { page } = viewer;
    await page.addInitScript(() => {
      if (!sessionStorage.getItem("once")) localStorage.setItem("ether.token", "0".repeat(64));
      sessionStorage.setItem("once", "yes");
    });
    await page.goto(viewer.address(`#/watch/${id}`));
    await page.locator("#sign-in-problem:not([hidden])").waitFor();
    assert.match(await page.locator("#sign-in-problem").innerText(), /signed out/);
    await page.locator("#sign-in-token").fill(server.token);
    await page.keyboard.press("Enter");
    await page.locator("#watch:not([hidden])").waitFor();
    await viewer.shows(0.2, 3);
    await viewer.close();
  } finally {
    await server.stop();
  }
});
