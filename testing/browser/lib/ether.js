// The real server, as a person starts it: one process with its own data directory on a free loopback port.

import { spawn } from "node:child_process";
import fs from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import path from "node:path";

import { repository } from "./media.js";
import { until } from "./until.js";

const BINARY = process.env.ETHER_BIN || path.join(repository, "target/debug/ether");
const READY = /ether is ready: (\S+)/;
const START_LIMIT_MS = 30_000;

/** `terminal`: started under a pseudo-terminal, as by a person; then `link` carries the one-use code. */
export async function startEther({ folder, dataDir, port, terminal = false, environment = {} }) {
  const data = dataDir ?? (await fs.mkdtemp(path.join(os.tmpdir(), "ether-data-")));
  const listen = `127.0.0.1:${port ?? (await freePort())}`;
  const command = ["serve", "--media", folder, "--data-dir", data, "--listen", listen];
  const [program, ...rest] = terminal ? ["script", "-qefc", [BINARY, ...command].map(quote).join(" "), "/dev/null"] : [BINARY, ...command];
  const child = spawn(program, rest, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, NO_COLOR: "1", ...environment } });
  let output = "";
  const exited = new Promise((resolve) => child.once("exit", (code, signal) => resolve({ code, signal })));
  const ready = new Promise((resolve, reject) => {
    const read = (chunk) => {
      output += chunk;
      const match = READY.exec(output);
      if (match) resolve(match[1]);
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
    child.once("error", (error) => reject(new Error(`${BINARY} cannot be started: ${error.message}; build it, or name it in ETHER_BIN`)));
    exited.then(({ code, signal }) => reject(new Error(`ether ended before it was ready (${code ?? signal}):\n${output}`)));
    setTimeout(() => reject(new Error(`ether was not ready within ${START_LIMIT_MS} ms:\n${output}`)), START_LIMIT_MS).unref();
  });
  let link;
  try {
    link = await ready;
  } catch (error) {
    child.kill("SIGKILL");
    throw error;
  }
  const token = (await fs.readFile(path.join(data, "owner-token"), "utf8")).trim();
  const url = new URL(link).origin;
  const server = {
    url,
    link,
    token,
    folder,
    dataDir: data,
    port: Number(new URL(url).port),
    get output() {
      return output;
    },
    api: (method, address, body) => ask(url, token, method, address, body),
    /** FFmpeg and ffprobe processes that belong to this server, as `pid name`; those with `word` among their arguments. */
    encoders: async (word) => {
      const all = await encodersOf(child.pid, [data, folder]);
      if (!word) return all;
      const words = await Promise.all(all.map((each) => fs.readFile(`/proc/${each.split(" ")[0]}/cmdline`, "utf8").catch(() => "")));
      return all.filter((_, n) => words[n].split("\0").includes(word));
    },
    /** Waits until none is left. */
    noEncoder: (limitMs) => until("every ffmpeg of this server to end", async () =>
      (await encodersOf(child.pid, [data, folder])).length === 0, limitMs),
    /** Waits until every file of the folder is either in the library or listed with a reason. */
    async scanned() {
      return until("the first scan to end", async () => {
        const { body } = await ask(url, token, "GET", "/ether/api/library");
        return !body.scanning && body.items.length + body.problems.length > 0 ? body : null;
      }, 60_000);
    },
    async item(file) {
      const { items, problems } = await this.scanned();
      const found = items.find((item) => item.file === file);
      if (!found) throw new Error(`${file} is not in the library; problems: ${JSON.stringify(problems)}`);
      return found;
    },
    /** Ends it at once, as a crash does; the data directory stays. */
    async crash() {
      await signalTree(child.pid, "SIGKILL");
      await exited;
    },
    /** Ends it as Ctrl-C does and removes what it kept; resolves with how it ended. */
    async stop({ keep = false } = {}) {
      if (child.exitCode === null && child.signalCode === null) await signalTree(child.pid, "SIGTERM");
      const how = await Promise.race([exited, expire(20_000)]);
      if (how === null) {
        child.kill("SIGKILL");
        throw new Error(`ether did not end within 20 s of SIGTERM:\n${output.slice(-4000)}`);
      }
      if (!keep) await fs.rm(data, { recursive: true, force: true });
      return how;
    },
  };
  return server;
}

/** One request with the owner's token; never throws for a status. */
async function ask(url, token, method, address, body) {
  const response = await fetch(url + address, {
    method,
    headers: { Authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  let parsed = text;
  try {
    parsed = JSON.parse(text);
  } catch {
    // A playlist, or nothing.
  }
  return { status: response.status, headers: response.headers, body: parsed };
}

function expire(ms) {
  return new Promise((resolve) => setTimeout(() => resolve(null), ms).unref());
}

function quote(word) {
  return `'${word.replaceAll("'", "'\\''")}'`;
}

/** A port that nothing listens on now. */
export async function freePort() {
  const probe = net.createServer();
  await new Promise((resolve, reject) => probe.once("error", reject).listen(0, "127.0.0.1", resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

/** Every process as `{ pid, parent, name }`, from /proc. */
async function processes() {
  const list = [];
  for (const entry of await fs.readdir("/proc")) {
    if (!/^\d+$/.test(entry)) continue;
    try {
      const stat = await fs.readFile(`/proc/${entry}/stat`, "utf8");
      const close = stat.lastIndexOf(")");
      const fields = stat.slice(close + 2).split(" ");
      // A zombie has ended; only its parent's wait is missing.
      if (fields[0] !== "Z") list.push({ pid: Number(entry), parent: Number(fields[1]), name: stat.slice(stat.indexOf("(") + 1, close) });
    } catch {
      // Gone between the two reads.
    }
  }
  return list;
}

/**
 * The server's encoders: its descendants, and, should one have outlived its parent, every process that has one
 * of the server's own folders in its arguments, its working directory or its open files.
 */
async function encodersOf(root, folders) {
  const all = await processes();
  const family = new Set([root]);
  for (let grown = true; grown;) {
    grown = false;
    for (const { pid, parent } of all) {
      if (family.has(parent) && !family.has(pid)) {
        family.add(pid);
        grown = true;
      }
    }
  }
  const found = [];
  for (const { pid, name } of all) {
    if (!/^ff(mpeg|probe)/.test(name)) continue;
    if (family.has(pid) || (await touches(pid, folders))) found.push(`${pid} ${name}`);
  }
  return found;
}

async function touches(pid, folders) {
  const seen = [];
  try {
    seen.push(await fs.readFile(`/proc/${pid}/cmdline`, "utf8"));
    seen.push(await fs.readlink(`/proc/${pid}/cwd`));
    for (const fd of await fs.readdir(`/proc/${pid}/fd`)) seen.push(await fs.readlink(`/proc/${pid}/fd/${fd}`).catch(() => ""));
  } catch {
    // Ended meanwhile, or another user's.
  }
  return seen.some((text) => folders.some((folder) => text.includes(folder)));
}

/** Under a pseudo-terminal the server is a child of `script`; the signal is for the server. */
async function signalTree(pid, signal) {
  const all = await processes();
  const targets = [pid];
  const direct = all.filter(({ parent }) => parent === pid);
  if (all.find((each) => each.pid === pid)?.name === "script") {
    targets.length = 0;
    // script runs a shell, or, where the shell replaces itself, the server.
    for (const child of direct) {
      const below = all.filter(({ parent, name }) => parent === child.pid && name === "ether");
      targets.push(...(below.length > 0 ? below.map((each) => each.pid) : [child.pid]));
    }
  }
  for (const target of targets) {
    try {
      process.kill(target, signal);
    } catch {
      // Ended already.
    }
  }
}
