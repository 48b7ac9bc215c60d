// What this browser can show, asked of the browser itself and sent with every playback, so that the server
// converts nothing that plays as it is.

const VIDEO = {
  mp4: [
    "avc1.42E01F", "avc1.4D401F", "avc1.4D4028", "avc1.64001F", "avc1.640028", "avc1.640029", "avc1.64002A",
    "avc1.640032", "avc1.640033", "avc1.640034",
    "hvc1.1.6.L93.B0", "hvc1.1.6.L120.B0", "hvc1.1.6.L150.B0", "hvc1.1.6.L153.B0", "hvc1.2.4.L120.B0", "hvc1.2.4.L153.B0",
    "hev1.1.6.L120.B0", "hev1.2.4.L153.B0",
    "av01.0.05M.08", "av01.0.08M.08", "av01.0.12M.08", "av01.0.13M.08", "av01.0.08M.10", "av01.0.13M.10",
    "vp09.00.10.08", "vp09.00.41.08", "vp09.00.51.08", "vp09.02.41.10",
  ],
  webm: ["vp8", "vp9"],
};

const AUDIO = {
  mp4: ["mp4a.40.2", "mp4a.40.5", "mp4a.40.29", "mp3", "mp4a.69", "mp4a.6B", "ac-3", "ec-3", "opus", "flac", "alac"],
  webm: ["vorbis"],
};

/** Files that a plain <video> opens; the probe names what is usually inside. */
const CONTAINERS = {
  mp4: 'video/mp4; codecs="avc1.640028,mp4a.40.2"',
  mov: 'video/quicktime; codecs="avc1.640028,mp4a.40.2"',
  webm: 'video/webm; codecs="vp8,vorbis"',
  mkv: 'video/x-matroska; codecs="avc1.640028,mp4a.40.2"',
  mp3: "audio/mpeg",
  flac: "audio/flac",
  ogg: 'audio/ogg; codecs="vorbis"',
  wav: 'audio/wav; codecs="1"',
};

/**
 * The `client` of a playback's request. `streams` are the item's own: their exact codec strings are asked too,
 * for a table can never hold every profile and level.
 */
export function abilities(streams = []) {
  const element = document.createElement("video");
  const source = globalThis.MediaSource ?? globalThis.ManagedMediaSource;
  const shows = (type) => {
    // Media Source's answer where there is one: streams go that way. A "maybe" for a type with codecs is a no.
    if (source) return source.isTypeSupported(type);
    return element.canPlayType(type) === "probably";
  };
  const ask = (table, kind) => Object.entries(table).flatMap(([container, codecs]) =>
    codecs.filter((codec) => shows(`${kind}/${container}; codecs="${codec}"`)));
  const exact = (kind) => streams
    .filter((stream) => stream.kind === kind && stream.codecString && shows(`${kind}/mp4; codecs="${stream.codecString}"`))
    .map((stream) => stream.codecString);
  return {
    video: [...new Set([...ask(VIDEO, "video"), ...exact("video")])],
    audio: [...new Set([...ask(AUDIO, "audio"), ...exact("audio")])],
    containers: Object.keys(CONTAINERS).filter((name) => element.canPlayType(CONTAINERS[name]) !== ""),
    hdr: matchMedia("(dynamic-range: high)").matches,
  };
}
