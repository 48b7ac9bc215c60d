// The films that tests play: the synthetic clips of scripts/make-clips.sh, and real files where there are any.

import { execFile } from "node:child_process";
import fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../..");
const clips = path.join(root, "target/clips");

export const repository = root;

/**
 * A new folder that holds these clips, and nothing else. Links where the file system allows, for no clip is ever
 * written to.
 */
export async function folderOf(names) {
  await promisify(execFile)(path.join(root, "scripts/make-clips.sh"), [clips, ...names.filter((name) => !name.startsWith("/"))], { timeout: 300_000 });
  const folder = await fs.mkdtemp(path.join(os.tmpdir(), "ether-films-"));
  for (const name of names) await bring(name.startsWith("/") ? name : path.join(clips, name), folder);
  return folder;
}

/** Puts one file into a folder, under `as` or its own name. */
export async function bring(file, folder, as = path.basename(file)) {
  const target = path.join(folder, as);
  await fs.link(file, target).catch(() => fs.copyFile(file, target));
  return target;
}

/** Makes a file that has lain there for an hour: a library waits with one that has just been written until it rests. */
export async function lay(folder, name, content) {
  const file = path.join(folder, name);
  await fs.writeFile(file, content);
  const then = new Date(Date.now() - 3_600_000);
  await fs.utimes(file, then, then);
}

/** The folder of real films, or null: named by ETHER_MEDIA, else beside the repository. */
export async function realFilms() {
  const folder = process.env.ETHER_MEDIA || path.resolve(root, "../shared/media");
  try {
    await fs.access(folder);
    return folder;
  } catch {
    return null;
  }
}
