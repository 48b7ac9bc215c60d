// Where most stories play: one server with a folder of films, and one browser, for all tests of a file.

import { openBrowser } from "./browser.js";
import { startEther } from "./ether.js";
import { folderOf } from "./media.js";

/** A server that has looked through these films, and a browser. `furnish(folder)` puts more into the folder first. */
export async function openStage(films, furnish = async () => {}) {
  const folder = await folderOf(films);
  await furnish(folder);
  const server = await startEther({ folder });
  try {
    await server.scanned();
    return { server, browser: await openBrowser() };
  } catch (error) {
    await server.stop();
    throw error;
  }
}

/** Ends both; before they were opened there is nothing to end. */
export async function closeStage({ server, browser }) {
  await browser?.close();
  await server?.stop();
}
