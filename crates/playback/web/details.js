// Words about one item and about what the server does with it: the text under the picture and in the dialog.

import { byId, el } from "./dom.js";
import { bytes, channels, codecName, containerName, definition, languageName, rate, roughLength } from "./format.js";

/** What the small button in the bar says, and the sentence behind it. */
const MODES = {
  direct: () => ["Original", "The file is sent as it is."],
  copy: ({ video }) => ["Copied", video ? "The file is repackaged; picture and sound stay as they are." : "The file is repackaged; the sound stays as it is."],
  encode: ({ video, audio }) => {
    if (!video) return ["Converted", "The server converts the sound while you listen."];
    if (video.action === "copy") return ["Converted", "Only the sound is converted; the picture stays as it is."];
    return ["Converted", audio?.action === "copy" ? "The server converts the picture while you watch; the sound stays as it is." : "The server converts it while you watch."];
  },
};

const ACTIONS = {
  direct: (codec) => `${codec}, as it is in the file`,
  copy: (codec) => `${codec}, copied without loss`,
  encode: (codec) => `converted to ${codec}`,
  none: () => "none",
};

/** `{ short, long }`, or null where nothing is decided. */
export function modeWords(decision) {
  const words = MODES[decision?.mode]?.(decision);
  return words ? { short: words[0], long: words[1] } : null;
}

/** One stream as a line of text. */
export function streamWords(stream) {
  const parts = [];
  if (stream.kind === "video") {
    parts.push(codecName(stream.codec));
    if (stream.width && stream.height) parts.push(`${stream.width} × ${stream.height}`);
    const fps = Number(stream.frameRate);
    if (Number.isFinite(fps) && fps > 0) parts.push(`${Math.round(fps * 100) / 100} fps`);
    if (stream.hdr && stream.hdr !== "sdr" && stream.hdr !== "none") parts.push(typeof stream.hdr === "string" ? stream.hdr.toUpperCase() : "HDR");
  } else if (stream.kind === "audio") {
    parts.push(languageName(stream.language), codecName(stream.codec), channels(stream.channels));
  } else {
    parts.push(languageName(stream.language), codecName(stream.codec), stream.forced ? "forced" : "");
  }
  const words = parts.filter(Boolean).join(" · ");
  return stream.title ? `${stream.title} (${words})` : words;
}

export function showItem(item) {
  byId("watch-title").textContent = item.title;
  byId("stage-title").textContent = item.title;
  const facts = [
    roughLength((item.durationMs ?? 0) / 1000),
    definition(item.width, item.height),
    containerName(item.container),
    bytes(item.size),
    item.size && item.durationMs ? rate((item.size * 8000) / item.durationMs) : "",
  ];
  byId("watch-facts").textContent = facts.filter(Boolean).join(" · ");
  const warnings = item.warnings ?? [];
  byId("watch-warnings").hidden = warnings.length === 0;
  byId("watch-warnings").textContent = warnings.map((warning) => (typeof warning === "string" ? warning : warning.text ?? warning.message ?? warning.code)).join(" ");
  const kinds = [["video", "Picture"], ["audio", "Sound"], ["subtitle", "Subtitles"]];
  const rows = kinds.flatMap(([kind, name]) => {
    const streams = (item.streams ?? []).filter((stream) => stream.kind === kind && !stream.still);
    if (streams.length === 0) return [];
    return [el("div", {}, el("dt", { text: name }), ...streams.map((stream) => el("dd", { text: streamWords(stream) })))];
  });
  if (item.file) rows.push(el("div", {}, el("dt", { text: "File" }), el("dd", {}, el("bdi", { text: item.file }))));
  byId("watch-streams").replaceChildren(...rows);
}

/** What is done to picture and sound, with the reasons, as a list of elements. */
export function decisionElements(decision) {
  const mode = modeWords(decision);
  if (!mode) return [];
  const row = (name, part) => {
    if (!part) return null;
    const say = ACTIONS[part.action] ?? ((codec) => `${part.action} ${codec}`);
    return el("li", {},
      el("span", { class: "decision-name", text: name }),
      el("span", { text: say(codecName(part.codec)) }),
      ...(part.reasons ?? []).map((reason) => el("span", { class: "decision-why", text: reason.text ?? reason.code })),
    );
  };
  // Why the file itself is not sent; for one that is, its parts say it already.
  const reasons = decision.mode === "direct" ? [] : (decision.reasons ?? []);
  const whole = reasons.length === 0 ? null : el("li", {},
    el("span", { class: "decision-name", text: "File" }),
    ...reasons.map((reason) => el("span", { class: "decision-why", text: reason.text ?? reason.code })));
  return [
    el("p", { class: "decision-mode" }, el("strong", { text: mode.short }), el("span", { text: ` ${mode.long}` })),
    el("ul", {}, row("Picture", decision.video), row("Sound", decision.audio), whole),
  ];
}
