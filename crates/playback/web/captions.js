// Text over the picture: the session's own files, put beside the video as any browser takes them, or the tracks that
// a browser reads out of a playlist by itself.

/**
 * Returns what shows the track with a place in `texts`, -1 for none, until `signal` ends it. `own`: the browser may
 * find the tracks by itself (Safari does in HLS, Chromium does not); then they are its to show, in the same order.
 */
export function captions(video, texts, { own, signal }) {
  let wanted = -1;
  let added = null;
  const fit = () => {
    const found = own ? [...video.textTracks].filter((track) => track !== added?.track && /^(subtitles|captions)$/.test(track.kind)) : [];
    for (const [place, track] of found.entries()) track.mode = place === wanted ? "showing" : "disabled";
    // What a browser finds is known once it has read the playlist.
    const mine = !own || (found.length === 0 && video.readyState >= HTMLMediaElement.HAVE_METADATA);
    add(mine ? texts[wanted] : undefined);
  };
  const add = (text) => {
    if (added?.src === (text && new URL(text.vtt, location.href).href)) return;
    added?.remove();
    added = null;
    if (!text) return;
    added = document.createElement("track");
    Object.assign(added, { kind: "subtitles", label: text.name, srclang: text.language ?? "", src: text.vtt });
    video.append(added);
    added.track.mode = "showing";
  };
  video.addEventListener("loadedmetadata", fit, { signal });
  video.textTracks.addEventListener("addtrack", ({ track }) => track !== added?.track && fit(), { signal });
  signal.addEventListener("abort", () => add(undefined), { once: true });
  return (place) => {
    wanted = place;
    fit();
  };
}
