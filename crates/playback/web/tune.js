// The dialog with quality, audio, subtitles, and what is being done: choices go back to the player as one call.

import { byId, el } from "./dom.js";
import { decisionElements, streamWords } from "./details.js";
import { subtitleHint, subtitleWords } from "./subtitles.js";
import { bytes, clock, rate } from "./format.js";

/** Heights offered below the film's own, each with the bits a second that suit it. */
const STEPS = [
  [2160, 16_000_000], [1440, 10_000_000], [1080, 6_000_000], [720, 3_000_000], [480, 1_500_000], [360, 800_000], [240, 400_000],
];
const LOOK_MS = 2_000;

/**
 * The qualities that make sense for an item, each with the part of the request that asks for it. `ladder` are
 * those that the running playback switches between by itself, where it has several.
 */
export function qualities(item, ladder = []) {
  const picture = (item.streams ?? []).find((stream) => stream.kind === "video" && !stream.still);
  const list = [{ id: "auto", name: "Automatic", hint: "As good as this browser can show", request: { ladder: true } }];
  if (!picture) return list;
  list.push({ id: "original", name: "Original", hint: "Never convert the picture", request: { video: "copy" } });
  if (ladder.length > 1) {
    for (const { height, bitRate } of ladder) list.push({ id: String(height), name: `${height}p`, hint: `up to ${rate(bitRate)}`, request: { maxHeight: height } });
    return list;
  }
  const short = Math.min(picture.width ?? item.width ?? 0, picture.height ?? item.height ?? 0);
  for (const [height, maxBitrate] of STEPS) {
    if (height < short) list.push({ id: String(height), name: `${height}p`, hint: `up to ${rate(maxBitrate)}`, request: { maxHeight: height, maxBitrate } });
  }
  return list;
}

export class TuneDialog {
  #dialog = byId("tune-dialog");
  #player;
  #timer = 0;

  /** `player`: `item`, `quality`, `audio`, `subtitle`, `decision`, `ladder`, `numbers()`, `lookAtSession()`, `choose({quality, audio, subtitle})`. */
  constructor(player) {
    this.#player = player;
    this.#dialog.addEventListener("close", () => clearTimeout(this.#timer));
    this.#dialog.addEventListener("click", (event) => {
      // A click beside the sheet closes it.
      if (event.target === this.#dialog) this.#dialog.close();
    });
  }

  open() {
    if (this.#dialog.open || !this.#player.item) return;
    this.#fill();
    this.#dialog.showModal();
    this.#refresh();
  }

  close() {
    if (this.#dialog.open) this.#dialog.close();
  }

  /** The decision has changed under the open dialog. */
  update() {
    byId("doing").replaceChildren(...decisionElements(this.#player.decision));
  }

  #fill() {
    const { item, quality, decision, ladder } = this.#player;
    byId("quality-list").replaceChildren(...qualities(item, ladder).map((each) =>
      choice("quality", each.id, each.name, each.hint, each.id === quality, () => this.#player.choose({ quality: each.id }))));
    const tracks = (item.streams ?? []).filter((stream) => stream.kind === "audio");
    const heard = this.#player.audio ?? decision?.audio?.stream ?? (tracks.find((track) => track.default) ?? tracks[0])?.index;
    byId("audio-set").hidden = tracks.length < 2;
    byId("audio-list").replaceChildren(...tracks.map((stream, n) =>
      choice("audio", String(stream.index), streamWords(stream) || `Track ${n + 1}`, stream.default ? "The file's default" : "",
        stream.index === heard, () => this.#player.choose({ audio: stream.index }))));
    const texts = item.subtitles ?? [];
    byId("subtitle-set").hidden = texts.length === 0;
    byId("subtitle-list").replaceChildren(
      choice("subtitle", "off", "Off", "", this.#player.subtitle === null, () => this.#player.choose({ subtitle: null })),
      ...texts.map((track, n) => choice("subtitle", String(track.stream), subtitleWords(track) || `Track ${n + 1}`, subtitleHint(track),
        track.stream === this.#player.subtitle, () => this.#player.choose({ subtitle: track.stream }))));
    this.update();
  }

  async #refresh() {
    clearTimeout(this.#timer);
    const session = await this.#player.lookAtSession();
    if (!this.#dialog.open) return;
    const rows = [...this.#player.numbers(), ...encoderNumbers(session)];
    byId("numbers").replaceChildren(...rows.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))));
    this.#timer = setTimeout(() => this.#refresh(), LOOK_MS);
  }
}

function choice(group, value, name, hint, checked, onChoose) {
  const id = `${group}-${value}`;
  const input = el("input", { type: "radio", name: group, id, value, checked, on: { change: onChoose } });
  return el("label", { class: "choice", for: id }, input, el("span", { class: "choice-name", text: name }), hint ? el("span", { class: "choice-hint", text: hint }) : null);
}

/** The encoder's own sample; fields it does not have are left out, never shown as zero. */
function encoderNumbers(session) {
  const rows = [];
  // What encodes the picture, and why nothing faster does.
  const { encoding, decision } = session ?? {};
  if (encoding && decision?.video?.action === "encode") {
    rows.push(["Encoded by", encoding.name], ["Because", encoding.reasons.join(" · ")]);
    for (const { from, message } of encoding.fallbacks) rows.push([`Instead of ${from}`, message]);
  }
  const sample = session?.encoder;
  if (!sample) return rows;
  rows.push(["Encoder", sample.ended?.message ?? sample.state]);
  if (Number.isFinite(sample.producedMs)) rows.push(["Made up to", clock(sample.producedMs / 1000)]);
  if (Number.isFinite(sample.runs)) rows.push(["Encoder starts", String(sample.runs)]);
  if (Number.isFinite(sample.scratchUsed) && sample.scratchLimit > 0) rows.push(["Scratch space", `${bytes(sample.scratchUsed)} of ${bytes(sample.scratchLimit)}`]);
  const last = session.refusals?.at(-1);
  if (last) rows.push(["Last refusal", last.message]);
  return rows;
}
