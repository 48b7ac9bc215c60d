// Playlists and manifests as parsers that nobody here wrote read them, hls-parser in its strict mode and mpd-parser,
// and what the segments they name really hold.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { promisify } from "node:util";

import HLS from "hls-parser";
import { parse as parseManifest } from "mpd-parser";

HLS.setOptions({ strictMode: true });

/** A segment that is not ready yet is asked for again this often, as players do. */
const TRIES = 10;

/** Fetched as a player does: by the grant in the address, without a token. */
export async function fetchText(address, type) {
  const response = await fetch(address);
  assert.equal(response.status, 200, String(address));
  assert.match(response.headers.get("Content-Type"), type);
  return response.text();
}

async function fetchBytes(address) {
  for (let n = 0; ; n += 1) {
    const response = await fetch(address);
    if (response.status === 503 && n < TRIES) {
      await response.body.cancel();
      await new Promise((resolve) => setTimeout(resolve, 1000 * Number(response.headers.get("Retry-After") ?? 1)));
      continue;
    }
    assert.equal(response.status, 200, `${address}: ${response.status}`);
    return Buffer.from(await response.arrayBuffer());
  }
}

/**
 * Everything of an HLS session: `{ variants, sounds, texts }`. A variant and a sound have their list as `list` with
 * the segments' whole addresses; a variant has all that is written of it as `said`.
 */
export async function readHls(server, session) {
  const top = new URL(session.url, server.url);
  const multivariant = strictly(await fetchText(top, /mpegurl/i));
  assert.equal(multivariant.isMasterPlaylist, true);
  const media = async (uri) => {
    const address = new URL(uri, top);
    const source = await fetchText(address, /mpegurl/i);
    assert.equal(await fetchText(address, /mpegurl/i), source, "a finished list never changes");
    const list = strictly(source);
    assert.deepEqual([list.isMasterPlaylist, list.endlist, list.playlistType], [false, true, "VOD"]);
    const longest = Math.max(...list.segments.map(({ duration }) => Math.round(duration)));
    assert.equal(list.targetDuration, Math.max(1, longest), "the target is the longest segment, rounded");
    const map = list.segments[0].map;
    for (const segment of list.segments) assert.equal(segment.map?.uri, map?.uri, "one initialization segment serves all");
    return {
      init: map ? new URL(map.uri, address) : null,
      segments: list.segments.map(({ uri, duration }) => ({ address: new URL(uri, address), seconds: duration })),
    };
  };
  const renditions = (kind) => [...new Map(multivariant.variants.flatMap((variant) => variant[kind]).map((each) => [each.uri, each])).values()];
  const all = (kind) => Promise.all(renditions(kind).map(async (said) => ({ said, list: await media(said.uri) })));
  return {
    variants: await Promise.all(multivariant.variants.map(async (said) => ({ said, list: await media(said.uri) }))),
    sounds: await all("audio"),
    texts: await all("subtitles"),
  };
}

function strictly(source) {
  assert.ok(!source.startsWith("\ufeff"));
  return HLS.parse(source);
}

/** Everything of a DASH session: `{ seconds, pictures, sounds, texts }`, each with what is said and its list. */
export async function readDash(server, session) {
  const address = new URL(session.url, server.url);
  const source = await fetchText(address, /dash\+xml/);
  assert.equal(await fetchText(address, /dash\+xml/), source, "a manifest never changes");
  const warnings = [];
  const manifest = parseManifest(source, { manifestUri: address.href, eventHandler: ({ message }) => warnings.push(message) });
  assert.deepEqual(warnings, []);
  const listed = (playlist) => ({
    said: playlist.attributes,
    list: {
      init: playlist.segments[0]?.map ? new URL(playlist.segments[0].map.resolvedUri) : null,
      segments: playlist.segments.map((segment) => ({ address: new URL(segment.resolvedUri), seconds: segment.duration, at: segment.presentationTime })),
    },
  });
  const group = (kind) => Object.entries(manifest.mediaGroups[kind]).flatMap(([, tracks]) => Object.entries(tracks));
  return {
    source,
    seconds: manifest.duration,
    pictures: manifest.playlists.map(listed),
    sounds: group("AUDIO").flatMap(([, { language, playlists }]) => playlists.map((playlist) => ({ language, ...listed(playlist) }))),
    texts: group("SUBTITLES").map(([label, { language, playlists }]) => ({ label, language, address: new URL(playlists[0].resolvedUri, address) })),
  };
}

/** Each set's timeline as it is written: `{ scale, offset, at, spans }`, in units of `1/scale` s. */
export function timelines(source) {
  return [...source.matchAll(/<SegmentTemplate timescale="(\d+)" presentationTimeOffset="(\d+)"[^>]*>\s*<SegmentTimeline>([\s\S]*?)<\/SegmentTimeline>/g)].map(([, scale, offset, rows]) => {
    const spans = [...rows.matchAll(/<S(?: t="(\d+)")? d="(\d+)"(?: r="(\d+)")?\/>/g)];
    return {
      scale: Number(scale),
      offset: Number(offset),
      at: Number(spans[0][1]),
      spans: spans.flatMap(([, , d, r]) => Array(Number(r ?? 0) + 1).fill(Number(d))),
    };
  });
}

/** Fetches a whole representation: the bytes of its head and of each segment. */
export async function take({ init, segments }) {
  const head = init ? await fetchBytes(init) : Buffer.alloc(0);
  const parts = [];
  for (const { address } of segments) parts.push(await fetchBytes(address));
  return { head, parts };
}

/**
 * Bits a second of what was taken: over all of it, and at most over stretches of whole segments that last between a
 * half and one and a half of `target` seconds (RFC 8216, section 4.1), or one segment that is longer.
 */
export function rates({ segments }, { parts }, target) {
  let peak = 0;
  for (let from = 0; from < segments.length; from += 1) {
    let [seconds, bytes] = [0, 0];
    for (let to = from; to < segments.length; to += 1) {
      seconds += segments[to].seconds;
      bytes += parts[to].length;
      if (seconds > 1.5 * target && to > from) break;
      if (seconds >= 0.5 * target) peak = Math.max(peak, (bytes * 8) / seconds);
    }
  }
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  return { peak, average: (sum(parts.map((part) => part.length)) * 8) / sum(segments.map(({ seconds }) => seconds)) };
}

/** What ffprobe sees in what was taken: each stream, with the shortest time between two pictures as `step`. */
export async function probe({ head, parts }, count = parts.length) {
  const folder = await fs.mkdtemp(path.join(os.tmpdir(), "ether-taken-"));
  try {
    const file = path.join(folder, "taken");
    await fs.writeFile(file, Buffer.concat([head, ...parts.slice(0, count)]));
    const run = promisify(execFile);
    const { stdout, stderr } = await run("ffprobe", ["-v", "warning", "-show_streams", "-show_entries", "packet=codec_type,pts_time", "-of", "json", file], { maxBuffer: 1 << 28 });
    assert.equal(stderr, "", "FFmpeg has nothing to complain of");
    const { streams, packets } = JSON.parse(stdout);
    const times = packets.filter((packet) => packet.codec_type === "video").map((packet) => Number(packet.pts_time)).sort((a, b) => a - b);
    const steps = times.slice(1).map((time, n) => time - times[n]).filter((step) => step > 0);
    return { video: streams.find((stream) => stream.codec_type === "video"), audio: streams.find((stream) => stream.codec_type === "audio"), step: Math.min(...steps) };
  } finally {
    await fs.rm(folder, { recursive: true });
  }
}

/** The RFC 6381 string of H.264 by the parameter set itself, in an MP4 head or in a transport stream. */
export function h264Codec({ head, parts }) {
  const box = head.indexOf("avcC");
  const text = (bytes) => `avc1.${bytes.toString("hex")}`;
  if (box >= 0) return text(head.subarray(box + 5, box + 8));
  // A start code and a sequence parameter set, whatever its importance.
  for (let at = parts[0].indexOf("\0\0\x01"); at >= 0; at = parts[0].indexOf("\0\0\x01", at + 3)) {
    if ((parts[0][at + 3] & 0x1f) === 7) return text(parts[0].subarray(at + 4, at + 7));
  }
  return null;
}

/** When the fragment's first sample is decoded, in seconds of its own clock. */
export function decodesFrom(head, part) {
  const mdhd = head.indexOf("mdhd");
  const scale = head.readUInt32BE(mdhd + 4 + (head[mdhd + 4] === 1 ? 20 : 12));
  const tfdt = part.indexOf("tfdt");
  const time = part[tfdt + 4] === 1 ? Number(part.readBigUInt64BE(tfdt + 8)) : part.readUInt32BE(tfdt + 8);
  return time / scale;
}
