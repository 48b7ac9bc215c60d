// How numbers and languages read to a person. Pure: the same words on the card, in the player and to a
// screen reader.

/** 3723.4 -> "1:02:03". Anything that is not a number reads as "0:00". */
export function clock(seconds) {
  const whole = Number.isFinite(seconds) ? Math.max(0, Math.floor(seconds)) : 0;
  const h = Math.floor(whole / 3600);
  const m = Math.floor((whole % 3600) / 60);
  const s = String(whole % 60).padStart(2, "0");
  return h > 0 ? `${h}:${String(m).padStart(2, "0")}:${s}` : `${m}:${s}`;
}

/** 3723.4 -> "1 hour 2 minutes 3 seconds", for those who hear the page. */
export function spokenClock(seconds) {
  const whole = Number.isFinite(seconds) ? Math.max(0, Math.floor(seconds)) : 0;
  const parts = [
    [Math.floor(whole / 3600), "hour"],
    [Math.floor((whole % 3600) / 60), "minute"],
    [whole % 60, "second"],
  ].filter(([n]) => n > 0);
  if (parts.length === 0) return "0 seconds";
  return parts.map(([n, word]) => `${n} ${word}${n === 1 ? "" : "s"}`).join(" ");
}

/** 3723.4 s -> "1 h 2 min"; short films keep their seconds. */
export function roughLength(seconds) {
  if (!Number.isFinite(seconds) || seconds <= 0) return "";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Bytes in decimal units, as disks are sold. */
export function bytes(count) {
  if (!Number.isFinite(count)) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 99.5 ? Math.round(value) : value.toPrecision(2)} ${units[unit]}`;
}

/** Bits a second -> "3.2 Mbit/s". */
export function rate(bitsPerSecond) {
  if (!Number.isFinite(bitsPerSecond) || bitsPerSecond <= 0) return "";
  if (bitsPerSecond < 1e6) return `${Math.round(bitsPerSecond / 1000)} kbit/s`;
  return `${(bitsPerSecond / 1e6).toFixed(1)} Mbit/s`;
}

/** 1080, 1920 -> "1080p"; a tall phone video is named by its short side, a wide film by its class. */
export function definition(width, height) {
  if (!width || !height) return "";
  const long = Math.max(width, height);
  const short = Math.min(width, height);
  if (long >= 3800 || short >= 2100) return "4K";
  for (const [w, h] of [[2500, 1440], [1900, 1080], [1260, 720], [1000, 576], [830, 480]]) {
    if (long >= w || short >= h) return `${h}p`;
  }
  return `${short}p`;
}

const CODECS = {
  h264: "H.264", avc: "H.264", hevc: "HEVC", h265: "HEVC", av1: "AV1", vp9: "VP9", vp8: "VP8",
  mpeg2video: "MPEG-2", mpeg2: "MPEG-2", mpeg4: "MPEG-4 Visual", mpeg4visual: "MPEG-4 Visual", mjpeg: "Motion JPEG", vc1: "VC-1",
  prores: "ProRes", theora: "Theora", aac: "AAC", ac3: "AC-3", eac3: "E-AC-3", opus: "Opus", vorbis: "Vorbis",
  flac: "FLAC", mp3: "MP3", mp2: "MP2", alac: "ALAC", dts: "DTS", dca: "DTS", truehd: "TrueHD", amr_nb: "AMR", amrnb: "AMR",
  subrip: "SubRip", ass: "ASS", webvtt: "WebVTT", mov_text: "Timed text", tx3g: "Timed text", hdmv_pgs_subtitle: "PGS", pgs: "PGS",
};

/** A codec's usual name; an unknown one keeps the server's word. */
export function codecName(codec) {
  if (!codec) return "";
  return CODECS[String(codec).toLowerCase()] ?? String(codec);
}

const CONTAINERS = { mp4: "MP4", mov: "QuickTime", matroska: "Matroska", webm: "WebM", mpegts: "MPEG-TS", avi: "AVI", "3gp": "3GP", flac: "FLAC", mp3: "MP3", ogg: "Ogg", wav: "WAV" };

/** A container's usual name; an unknown one keeps the server's word. */
export function containerName(container) {
  if (!container) return "";
  return CONTAINERS[String(container).toLowerCase()] ?? String(container);
}

/** 6 -> "5.1". */
export function channels(count) {
  const names = { 1: "mono", 2: "stereo", 3: "2.1", 6: "5.1", 7: "6.1", 8: "7.1" };
  return names[count] ?? (count ? `${count} channels` : "");
}

let languageNames;

/** "ger" -> "German", in the reader's language where the browser knows it. */
export function languageName(tag) {
  if (!tag || tag === "und") return "";
  try {
    languageNames ??= new Intl.DisplayNames(undefined, { type: "language" });
    return languageNames.of(Intl.getCanonicalLocales(tag)[0]) ?? tag;
  } catch {
    return tag;
  }
}

/** 1, "file" -> "1 file"; 2 -> "2 files". */
export function plural(count, word, many = `${word}s`) {
  return `${count.toLocaleString()} ${count === 1 ? word : many}`;
}
