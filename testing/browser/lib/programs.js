// Players that are programs: mpv, driven through its own socket, and FFmpeg's tools, each of which reads every
// protocol with code of its own.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import fs from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import { promisify } from "node:util";

import { until } from "./until.js";

const LIMIT_MS = 60_000;

/** What FFmpeg's tools print, which must be nothing to complain of. */
export async function tool(program, args) {
  const { stdout, stderr } = await promisify(execFile)(program, ["-nostdin", "-hide_banner", "-v", "warning", ...args].filter((word) => program === "ffmpeg" || word !== "-nostdin"),
    { maxBuffer: 1 << 28, timeout: 4 * LIMIT_MS });
  assert.equal(stderr, "", `${program} complains`);
  return stdout;
}

/** The pictures or pieces of sound of one stream that FFmpeg decodes, as `[first, last, count]` in seconds. */
export async function decoded(url, stream, before = []) {
  const text = await tool("ffmpeg", [...before, "-i", url, "-map", `0:${stream}`, "-f", "framehash", "-hash", "crc32", "-"]);
  const base = /#tb \d+: (\d+)\/(\d+)/.exec(text);
  const times = text.split("\n").filter((line) => line && !line.startsWith("#")).map((line) => (Number(line.split(",")[2]) * Number(base[1])) / Number(base[2]));
  return { first: times[0], last: times.at(-1), count: times.length };
}

/** Starts mpv on an address; it plays without a window and without a sound card, at its own pace. */
export async function startMpv(url, options = []) {
  const folder = await fs.mkdtemp(path.join(os.tmpdir(), "ether-mpv-"));
  const [socket, log] = [path.join(folder, "socket"), path.join(folder, "log")];
  const child = spawn("mpv", ["--no-config", "--vo=null", "--ao=null", "--no-terminal", "--hwdec=no", `--input-ipc-server=${socket}`,
    `--log-file=${log}`, ...options, url], { stdio: "ignore" });
  const exited = new Promise((resolve) => child.once("exit", (code, signal) => resolve(code ?? signal)));
  const mpv = new Mpv(child, exited, log, folder);
  try {
    await mpv.open(socket);
  } catch (error) {
    child.kill("SIGKILL");
    throw error;
  }
  return mpv;
}

class Mpv {
  #answers = new Map();
  #events = [];
  #count = 0;
  #socket = null;

  constructor(child, exited, log, folder) {
    Object.assign(this, { child, exited, log, folder });
  }

  async open(address) {
    this.#socket = await until("mpv's socket", () => new Promise((resolve) => {
      const socket = net.connect(address, () => resolve(socket)).once("error", () => resolve(null));
    }));
    this.#socket.on("error", () => {});
    // Whoever writes to an mpv that has ended learns it by its end.
    readline.createInterface({ input: this.#socket }).on("error", () => {}).on("line", (line) => {
      const message = JSON.parse(line);
      if (message.event) this.#events.push(message);
      else this.#answers.get(message.request_id)?.(message);
    });
  }

  async command(...command) {
    const id = (this.#count += 1);
    const answer = await new Promise((resolve) => {
      this.#answers.set(id, resolve);
      this.#socket.write(`${JSON.stringify({ command, request_id: id })}\n`);
      this.exited.then(() => resolve({ error: "mpv has ended" }));
    });
    return answer.error === "success" ? answer.data : null;
  }

  /** Waits until it plays somewhere from `from` to `to` seconds; resolves with where. */
  plays(from, to) {
    return until(`mpv to play between ${from} and ${to} s`, async () => {
      const [at, seeking] = [await this.command("get_property", "time-pos"), await this.command("get_property", "seeking")];
      return at !== null && seeking === false && at >= from && at <= to ? at : null;
    }, LIMIT_MS);
  }

  async seek(seconds) {
    await this.command("seek", seconds, "absolute+exact");
  }

  /** Its tracks of a kind, as it lists them. */
  async tracks(kind) {
    return (await this.command("get_property", "track-list")).filter(({ type }) => type === kind);
  }

  /** Lets it play to the end; then it must have ended for that reason, well, and without an error. */
  async ends() {
    await this.command("set_property", "speed", 8);
    const status = await Promise.race([this.exited, new Promise((resolve) => setTimeout(resolve, 2 * LIMIT_MS, "mpv goes on and on").unref())]);
    const words = await fs.readFile(this.log, "utf8").catch(() => "");
    const reasons = this.#events.filter(({ event }) => event === "end-file").map(({ reason }) => reason);
    assert.equal(status, 0, words);
    assert.deepEqual(reasons, ["eof"], words);
    // It warns of a machine too busy to play so fast, too.
    assert.deepEqual(words.split("\n").filter((line) => /\]\[[ef]\]/.test(line)), []);
  }

  async close() {
    if (this.child.exitCode === null) this.child.kill("SIGKILL");
    await this.exited;
    this.#socket?.destroy();
    await fs.rm(this.folder, { recursive: true });
  }
}
