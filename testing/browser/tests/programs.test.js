// mpv and FFmpeg's tools as players of every protocol: they play through, seek, change the sound, and end well.

import assert from "node:assert/strict";
import path from "node:path";
import { after, before, describe, test } from "node:test";

import { startEther } from "../lib/ether.js";
import { folderOf, realFilms } from "../lib/media.js";
import { decoded, startMpv, tool } from "../lib/programs.js";

const PROTOCOLS = {
  fmp4: { protocol: "hls", container: "fmp4" },
  ts: { protocol: "hls", container: "ts" },
  dash: { protocol: "dash" },
  matroska: { protocol: "http" },
};
/** Films by what holds them and what is in them, with what is asked for. */
const FILMS = {
  "three-languages.mkv": { video: "copy" },
  "late-clock.ts": { video: "copy" },
  "short-audio.mkv": { video: "encode", maxHeight: 180 },
  "sparse-keyframes.mp4": { video: "copy" },
  "interlaced.ts": { video: "encode", maxHeight: 240 },
  "surround-side.mkv": { video: "copy" },
  "odd-size.mkv": { video: "encode", maxHeight: 240 },
  "vfr.mkv": { video: "encode", maxHeight: 180 },
  "h264-eac3-51-start22s.ts": { video: "copy" },
  "hevc-10s-noaudio.mp4": { video: "encode", maxHeight: 240 },
  "vp8-vorbis-30s.webm": { video: "encode", maxHeight: 240 },
  "mpeg4-mp3.avi": { video: "encode", maxHeight: 240 },
};
/** What the short tier plays: each player with each protocol, and each kind of film that they take apart differently. */
const SHORT = [
  ["mpv", "three-languages.mkv", "fmp4"],
  ["mpv", "three-languages.mkv", "ts"],
  ["mpv", "three-languages.mkv", "dash"],
  ["mpv", "late-clock.ts", "matroska"],
  ["ffmpeg", "late-clock.ts", "fmp4"],
  ["ffmpeg", "late-clock.ts", "ts"],
  ["ffmpeg", "late-clock.ts", "dash"],
  ["ffmpeg", "three-languages.mkv", "matroska"],
];
const ALL = ["mpv", "ffmpeg"].flatMap((player) => Object.keys(FILMS).flatMap((film) => Object.keys(PROTOCOLS).map((protocol) => [player, film, protocol])));
const RUNS = process.env.ETHER_SOAK ? ALL : SHORT;

/**
 * Where FFmpeg and what is built on it can seek: a stream without segments has no other place, and FFmpeg 5.1 loses
 * its way in fragments of HLS after any seek, in those that its own muxer made, too.
 */
const SEEKS = ["ts", "dash"];

let server;
const there = new Set();

before(async () => {
  const real = await realFilms();
  const films = [...new Set(RUNS.map(([, film]) => film))];
  const isReal = (film) => /^(h264-|hevc-|vp8-|mpeg4-)/.test(film);
  const names = films.flatMap((film) => (!isReal(film) ? [film] : real ? [path.join(real, film)] : []));
  for (const name of names) there.add(path.basename(name));
  server = await startEther({ folder: await folderOf(names), environment: { ETHER_CAPACITY: "16" } });
  await server.scanned();
});

after(() => server?.stop());

for (const player of ["mpv", "ffmpeg"]) {
  describe(player, () => {
    for (const [, film, protocol] of RUNS.filter(([by]) => by === player)) {
      test(`${film} by ${protocol}`, async (context) => {
        if (!there.has(film)) return context.skip("no real films");
        const item = await server.item(film);
        const wish = { item: item.id, ...FILMS[film], ...PROTOCOLS[protocol] };
        const { status, body: session } = await server.api("POST", "/ether/api/sessions", wish);
        assert.equal(status, 201, JSON.stringify(session));
        const detail = (await server.api("GET", `/ether/api/items/${item.id}`)).body;
        const played = { url: server.url + session.url, length: session.durationMs / 1000, protocol,
          sounds: detail.streams.filter(({ kind }) => kind === "audio").length };
        try {
          await (player === "mpv" ? byMpv(played) : byFfmpeg(played));
        } finally {
          await server.api("DELETE", `/ether/api/sessions/${session.id}`);
          await server.noEncoder();
        }
      });
    }
  });
}

async function byMpv({ url, length, protocol, sounds }) {
  const seeks = SEEKS.includes(protocol);
  const choice = sounds > 1 && protocol !== "matroska";
  // Choosing another sound later is a seek for mpv.
  const mpv = await startMpv(url, choice && !seeks ? [`--aid=${sounds}`] : []);
  try {
    await mpv.plays(0.3, length);
    for (const to of seeks ? [0.6, 0.2] : []) {
      await mpv.seek(length * to);
      // FFmpeg leaves out a segment that a busy machine has not made in time.
      await mpv.plays(length * to - 0.1, length * to + 13);
    }
    const tracks = await mpv.tracks("audio");
    assert.equal(tracks.length, protocol === "matroska" ? Math.min(1, sounds) : sounds, "every sound is there to choose");
    if (choice) {
      if (seeks) await mpv.command("set_property", "aid", sounds);
      const at = await mpv.command("get_property", "time-pos");
      await mpv.plays(at + 1, length);
      assert.equal((await mpv.tracks("audio")).find(({ selected }) => selected).id, sounds);
    }
    if (seeks) {
      await mpv.seek(length - 6);
      await mpv.plays(length - 6.5, length);
    }
    await mpv.ends();
  } finally {
    await mpv.close();
  }
}

async function byFfmpeg({ url, length, protocol, sounds }) {
  const probed = JSON.parse(await tool("ffprobe", ["-show_entries", "stream=codec_type:format=duration", "-of", "json", url]));
  const kinds = probed.streams.map(({ codec_type: kind }) => kind);
  assert.ok(Math.abs(Number(probed.format.duration) - length) < 0.6, `FFmpeg takes it for ${probed.format.duration} s of ${length}`);
  assert.equal(kinds.filter((kind) => kind === "audio").length, protocol === "matroska" ? Math.min(1, sounds) : sounds);
  const pictures = await decoded(url, "v:0");
  assert.ok(pictures.count > length * 5, `${pictures.count} pictures in ${length} s`);
  assert.ok(Math.abs(pictures.last - pictures.first - length) < 0.2, `pictures last from ${pictures.first} to ${pictures.last}, not ${length} s`);
  if (SEEKS.includes(protocol)) {
    const late = await decoded(url, "v:0", ["-ss", String(length / 2)]);
    assert.ok(Math.abs(late.last - late.first - length / 2) < 0.7, `after a seek to ${length / 2} s pictures last ${late.last - late.first} s`);
  }
  if (sounds > 1 && protocol !== "matroska") {
    const sound = await decoded(url, `a:${sounds - 1}`);
    assert.ok(Math.abs(sound.last - sound.first - length) < 0.2, `the last sound lasts ${sound.last - sound.first} s`);
  }
}
