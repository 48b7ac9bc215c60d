// What playlists and manifests say of their segments is what the segments hold: rates, codecs, sizes, lengths. Read by
// strict parsers that nobody here wrote, for every protocol, with ladders, several sounds and text.

import assert from "node:assert/strict";
import fs from "node:fs/promises";
import path from "node:path";
import { after, before, describe, test } from "node:test";

import { startEther } from "../lib/ether.js";
import { decodesFrom, fetchText, h264Codec, probe, rates, readDash, readHls, take, timelines } from "../lib/lists.js";
import { folderOf, realFilms } from "../lib/media.js";

const BESIDE = "1\n00:00:02,000 --> 00:00:04,000\ntwo seconds\n";
const ENCODED = { video: "encode", ladder: true, segmentSeconds: 3 };
const COPIED = { video: "copy" };
/** The film, the wish, and whether it is told in the short tier. */
const FILMS = [
  ["three-languages.mkv", ENCODED, true],
  ["interlaced.ts", { ...ENCODED, segmentSeconds: 6 }, false],
  ["anamorphic.mkv", ENCODED, false],
  ["rotated.mp4", ENCODED, false],
  ["vfr.mkv", { ...ENCODED, ladder: false }, false],
  ["ntsc.mkv", ENCODED, false],
  ["late-clock.ts", COPIED, true],
  ["ass-cues.mkv", COPIED, true],
  ["irregular-keyframes.mkv", COPIED, true],
  ["sparse-keyframes.mp4", COPIED, false],
  ["long-h264-aac-362s.mp4", COPIED, false],
  ["h264-2xaac-8subrip.mkv", COPIED, false],
  ["h264-aac-vfr.mp4", COPIED, false],
];

let server;
const there = new Set();

before(async () => {
  const real = await realFilms();
  const soak = FILMS.filter(([, , short]) => short || process.env.ETHER_SOAK).map(([film]) => film);
  const names = soak.flatMap((film) => (!/h264/.test(film) ? [film] : real ? [path.join(real, film)] : []));
  for (const name of names) there.add(path.basename(name));
  const folder = await folderOf(names);
  await fs.writeFile(path.join(folder, "late-clock.en.srt"), BESIDE);
  server = await startEther({ folder });
  await server.scanned();
});

after(() => server?.stop());

for (const [film, wish, short] of FILMS) {
  describe(film, { skip: short || process.env.ETHER_SOAK ? false : "told in the long tier" }, () => {
    for (const container of ["fmp4", "ts"]) {
      test(`HLS in ${container}`, async (context) => {
        await inSession(context, film, { ...wish, protocol: "hls", container }, checkHls);
      });
    }
    test("DASH", async (context) => {
      await inSession(context, film, { ...wish, protocol: "dash" }, checkDash);
    });
  });
}

async function inSession(context, film, wish, check) {
  if (!there.has(film)) return context.skip("no real films");
  const item = await server.item(film);
  const detail = (await server.api("GET", `/ether/api/items/${item.id}`)).body;
  const { status, body: session } = await server.api("POST", "/ether/api/sessions", { item: item.id, ...wish });
  assert.equal(status, 201, JSON.stringify(session));
  try {
    await check(session, detail, wish);
  } finally {
    await server.api("DELETE", `/ether/api/sessions/${session.id}`);
    await server.noEncoder();
  }
}

async function checkHls(session, detail, wish) {
  const { variants, sounds, texts } = await readHls(server, session);
  const tracks = detail.streams.filter(({ kind }) => kind === "audio").length;
  assert.equal(sounds.length, sounds.length > 0 ? tracks : 0, "every sound is offered");
  assert.ok(sounds.length > 0 || tracks < 2);
  assert.equal(texts.length, detail.subtitles.filter(({ text }) => text).length, "every text track is offered");
  assert.equal(variants.length, session.decision.qualities.length);
  if (wish.ladder) assert.ok(variants.length > 1, "a ladder has rungs");
  for (const { list } of [...variants, ...sounds]) lasts(list, session);
  const heard = [];
  for (const { said, list } of sounds) {
    const taken = await take(list);
    const seen = await probe(taken);
    assert.equal(Number(said.channels), seen.audio.channels, `channels of ${said.name}`);
    heard.push(rates(list, taken, target(list)));
  }
  const most = (key) => Math.max(0, ...heard.map((rate) => rate[key]));
  for (const { said, list } of variants) {
    const taken = await take(list);
    const rate = rates(list, taken, target(list));
    const name = `${said.resolution?.width}x${said.resolution?.height}`;
    atMost(rate.peak + most("peak"), said.bandwidth, `BANDWIDTH of ${name}`);
    // The average is that of what is played unless another sound is chosen.
    atMost(rate.average + (heard[0]?.average ?? 0), said.averageBandwidth, `AVERAGE-BANDWIDTH of ${name}`);
    const codecs = said.codecs.split(",");
    const seen = await probe(taken);
    sizes(seen.video, said.resolution.width, said.resolution.height);
    assert.ok(codecs.includes(h264Codec(taken)), `CODECS are ${codecs}, the parameter set says ${h264Codec(taken)}`);
    const sound = seen.audio ?? (await probe(await take({ ...sounds[0].list, segments: sounds[0].list.segments.slice(0, 1) }))).audio;
    if (sound) assert.ok(codecs.includes(soundCodec(sound)), `CODECS are ${codecs}, the sound is ${soundCodec(sound)}`);
    assert.equal(codecs.length, sound ? 2 : 1);
    frameRate(said.frameRate, seen);
  }
  for (const { said, list } of texts) {
    assert.ok(said.name);
    assert.match(await fetchText(list.segments[0].address, /text\/vtt/), /^WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00\.000,MPEGTS:\d+\n/);
    lasts(list, session);
  }
}

async function checkDash(session, detail, wish) {
  const { source, seconds, pictures, sounds, texts } = await readDash(server, session);
  near(seconds, session.durationMs / 1000, 0.001, "the presentation");
  assert.equal(pictures.length, session.decision.qualities.length);
  assert.equal(sounds.length, detail.streams.filter(({ kind }) => kind === "audio").length, "every sound is offered");
  assert.equal(texts.length, detail.subtitles.filter(({ text }) => text).length, "every text track is offered");
  if (wish.ladder) assert.ok(pictures.length > 1, "a ladder has rungs");
  for (const { scale, offset, at, spans } of timelines(source)) {
    const end = at + spans.reduce((sum, span) => sum + span, 0);
    near((end - offset) / scale, seconds, 1 / scale, "a timeline ends with its period");
    near((at - offset) / scale, 0, 0.06, "a timeline begins with its period");
    assert.equal(spans.length, session.segments);
  }
  const [ofPictures, ...ofSounds] = timelines(source);
  for (const [n, { said, list }] of [...pictures, ...sounds].entries()) {
    const taken = await take(list);
    const timeline = n < pictures.length ? ofPictures : ofSounds[n - pictures.length];
    assert.equal(list.segments.length, session.segments);
    const seen = await probe(taken);
    const name = `${said.CODECS} ${said.BANDWIDTH}`;
    atMost(needed(list, taken, buffered(source)), said.BANDWIDTH, `@bandwidth of ${name}`);
    let at = timeline.at;
    for (const [m, part] of taken.parts.entries()) {
      near(decodesFrom(taken.head, part), at / timeline.scale, 0.0001, `segment ${m} of ${name} begins where its S says`);
      at += timeline.spans[m];
    }
    if (n < pictures.length) {
      sizes(seen.video, said.RESOLUTION.width, said.RESOLUTION.height);
      assert.equal(said.CODECS, h264Codec(taken));
      frameRate(said["FRAME-RATE"], seen);
    } else {
      assert.equal(said.CODECS, soundCodec(seen.audio));
    }
  }
  for (const { address } of texts) assert.match(await fetchText(address, /text\/vtt/), /^WEBVTT\n\n/);
}

/** Seconds that a player loads before it begins, by the manifest. */
function buffered(source) {
  return Number(/minBufferTime="PT([\d.]+)S"/.exec(source)[1]);
}

/**
 * Bits a second of a line with which playing never stops, from whatever segment on: what the standard means by
 * `@bandwidth`.
 */
function needed({ segments }, { parts }, before) {
  let most = 0;
  for (let from = 0; from < parts.length; from += 1) {
    let [bits, seconds] = [0, before];
    for (let to = from; to < parts.length; to += 1) {
      bits += parts[to].length * 8;
      seconds += segments[to].seconds;
      most = Math.max(most, bits / seconds);
    }
  }
  return most;
}

function target({ segments }) {
  return Math.max(...segments.map(({ seconds }) => Math.round(seconds)));
}

function lasts({ segments }, session) {
  near(segments.reduce((sum, { seconds }) => sum + seconds, 0), session.durationMs / 1000, 0.002, "the list");
}

function near(real, wanted, most, what) {
  assert.ok(Math.abs(real - wanted) <= most, `${what}: ${real}, not ${wanted}`);
}

function atMost(real, declared, what) {
  assert.ok(real <= declared, `${what} is ${declared}, and it takes ${Math.round(real)}`);
}

/** The size that a player shows, with square pixels and upright. */
function sizes(video, width, height) {
  const [across, down] = (video.sample_aspect_ratio ?? "1:1").split(":").map(Number);
  const turned = Math.abs(video.side_data_list?.find((data) => data.rotation !== undefined)?.rotation ?? 0) % 180 === 90;
  const shown = [Math.round((video.width * (across || 1)) / (down || 1)), video.height];
  if (turned) shown.reverse();
  assert.ok(Math.abs(shown[0] - width) <= 2 && Math.abs(shown[1] - height) <= 2, `RESOLUTION is ${width}x${height}, shown are ${shown.join("x")}`);
}

function soundCodec({ codec_name: codec, profile }) {
  const known = { aac: { LC: "mp4a.40.2", "HE-AAC": "mp4a.40.5" }[profile] ?? "mp4a.40.2", mp3: "mp4a.40.34", mp2: "mp4a.40.33", ac3: "ac-3", eac3: "ec-3", opus: "opus" };
  return known[codec] ?? codec;
}

/** What is declared is the highest rate that there is: players choose by it what they can show. */
function frameRate(declared, { step }) {
  if (declared === undefined) return;
  near(Number(declared) * step, 1, 0.05, `FRAME-RATE ${declared} by the shortest step`);
}
