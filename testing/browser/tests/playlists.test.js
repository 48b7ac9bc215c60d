// The playlists that the server writes, read by a strict parser that is not ours.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import HLS from "hls-parser";

import { startEther } from "../lib/ether.js";
import { folderOf } from "../lib/media.js";

const CLIPS = ["interlaced.ts", "irregular-keyframes.mkv", "late-clock.ts", "ntsc.mkv", "odd-size.mkv", "short-audio.mkv", "sparse-keyframes.mp4", "vfr.mkv"];

let server;

before(async () => {
  HLS.setOptions({ strictMode: true });
  server = await startEther({ folder: await folderOf(CLIPS) });
  await server.scanned();
});

after(() => server?.stop());

for (const clip of CLIPS) {
  for (const container of ["fmp4", "ts"]) {
    for (const video of ["auto", "encode"]) {
      test(`${clip}, ${video}, in ${container}`, async () => {
        const item = await server.item(clip);
        const { status, body: session } = await server.api("POST", "/ether/api/sessions", { item: item.id, protocol: "hls", container, video });
        assert.equal(status, 201, JSON.stringify(session));
        try {
          const top = new URL(session.url, server.url);
          const multivariant = parse(await text(top));
          assert.equal(multivariant.isMasterPlaylist, true);
          assert.ok(multivariant.variants.length >= 1);
          for (const variant of multivariant.variants) {
            assert.ok(variant.bandwidth > 0);
            assert.match(variant.codecs, /avc1|hvc1|mp4a/);
            const address = new URL(variant.uri, top);
            const source = await text(address);
            assert.equal(await text(address), source, "a finished list never changes");
            const list = parse(source);
            assert.equal(list.endlist, true);
            assert.equal(list.playlistType, "VOD");
            assert.equal(list.segments.length, session.segments);
            const sum = list.segments.reduce((total, { duration }) => total + duration, 0);
            assert.ok(Math.abs(sum - session.durationMs / 1000) < 0.05, `the segments last ${sum} s, the film ${session.durationMs / 1000} s`);
            for (const { duration } of list.segments) assert.ok(Math.round(duration) <= list.targetDuration);
            assert.equal(list.segments.every((segment) => Boolean(segment.map)), container === "fmp4");
            const { body: now } = await server.api("GET", `/ether/api/sessions/${session.id}`);
            assert.deepEqual([now.state, now.encoder], ["idle", null], "reading lists starts no encoder");
          }
        } finally {
          await server.api("DELETE", `/ether/api/sessions/${session.id}`);
        }
      });
    }
  }
}

function parse(source) {
  assert.ok(!source.startsWith("\ufeff"));
  return HLS.parse(source);
}

/** Fetched as a player does: by the grant in the address, without a token. */
async function text(address) {
  const response = await fetch(address);
  assert.equal(response.status, 200);
  assert.match(response.headers.get("Content-Type"), /mpegurl/i);
  return response.text();
}
