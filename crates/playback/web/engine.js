// Puts a playback's address into the <video>: as a file, by the browser's own HLS, or through Media Source with
// hls.js. Whichever it is, it reports the same two things: why it is waiting, and why it failed.

import { ApiError, refusal } from "./api.js";
import { captions } from "./captions.js";

const LIBRARY = "/assets/vendor/hls.min.js";
/** A segment is held back for at most 8 s by the server; anything slower than this is lost. */
const FIRST_BYTE_MS = 20_000;
const RETRIES = 12;
/** A browser's own HLS takes "not ready yet" for the end: loaded anew this often without a step forward. */
const RELOADS = 6;
const RELOAD_MS = 1_000;
/** What a line is taken to carry before anything was measured: starting low would start another encoder soon. */
const FIRST_ESTIMATE = 20_000_000;

/**
 * "native" or "mse", or null if this browser has neither. Media Source is preferred where both exist, for it
 * lets the page read why a request was refused; on Apple's browsers their own HLS is better, for HDR, AirPlay
 * and battery. `wanted` (the address's `?player=`) overrides where it can.
 */
export function choosePlayer(video, wanted = null) {
  const native = video.canPlayType("application/vnd.apple.mpegurl") !== "";
  const mse = Boolean(globalThis.MediaSource ?? globalThis.ManagedMediaSource);
  if (wanted === "native" && native) return "native";
  if (wanted === "mse" && mse) return "mse";
  const apple = "WebKitPlaybackTargetAvailabilityEvent" in globalThis;
  if (native && (apple || !mse)) return "native";
  return mse ? "mse" : null;
}

/**
 * Starts loading `url`. Returns `{ name, retry(), detach(), hear(n), show(height), caption(n) }`. `hear` and `show`
 * switch to the sound with that place in the playlist and to the quality of that height (null leaves it to the
 * player), and say whether they did; where they did not, only a new playback helps. `caption` shows the text track
 * with that place, -1 for none. `onWaiting(error or null)`: loading is being tried again, or goes on;
 * `onFailure(error)`: it has stopped until `retry()` or `detach()`. Loading anew pauses: whoever wants it to play says
 * so again when it can.
 */
export async function attach({ video, url, isFile, player, startSeconds, texts, onWaiting, onFailure }) {
  if (isFile || player === "native") {
    return attachNative({ video, url, isFile, startSeconds, texts, onWaiting, onFailure });
  }
  const Hls = await loadHls();
  return attachMse({ Hls, video, url, startSeconds, texts, onWaiting, onFailure });
}

function attachNative({ video, url, isFile, startSeconds, texts, onWaiting, onFailure }) {
  const live = new AbortController();
  let begin = startSeconds;
  let reloads = 0;
  let furthest = -1;
  const load = () => {
    video.src = url;
    video.load();
  };
  const reload = () => {
    begin = video.currentTime || begin;
    load();
  };
  video.addEventListener("loadedmetadata", () => {
    if (begin > 0) video.currentTime = begin;
    begin = 0;
  }, { signal: live.signal });
  video.addEventListener("error", async () => {
    const at = video.currentTime || begin;
    if (at > furthest) reloads = 0;
    furthest = Math.max(furthest, at);
    const error = await diagnose(video.error, url, isFile, live.signal);
    if (live.signal.aborted) return;
    if (!isFile && error.status === 0 && error.code !== "offline" && reloads < RELOADS) {
      reloads += 1;
      onWaiting(new ApiError({ status: 503, code: "not_ready" }));
      setTimeout(() => { if (!live.signal.aborted) reload(); }, RELOAD_MS);
      return;
    }
    onFailure(error);
  }, { signal: live.signal });
  load();
  return {
    name: isFile ? "the browser, from the file" : "the browser's own HLS",
    retry: reload,
    hear: () => false,
    show: () => false,
    // A file's own text tracks lie on its own clock, and not every browser reads them.
    caption: captions(video, texts, { own: !isFile, signal: live.signal }),
    detach() {
      live.abort();
      empty(video);
    },
  };
}

/** A media element only says that it failed; the address itself says why. */
async function diagnose(mediaError, url, isFile, signal) {
  try {
    const response = await fetch(url, {
      headers: isFile ? { Range: "bytes=0-0" } : {},
      signal,
      cache: "no-store",
      credentials: "omit",
    });
    if (!response.ok) return refusal(response.status, await response.text(), response.headers.get("Retry-After"));
  } catch {
    return new ApiError({ code: "offline" });
  }
  switch (mediaError?.code) {
    case MediaError.MEDIA_ERR_NETWORK: return new ApiError({ code: "offline" });
    case MediaError.MEDIA_ERR_DECODE: return new ApiError({ code: "decode" });
    default: return new ApiError({ code: "unplayable" });
  }
}

function attachMse({ Hls, video, url, startSeconds, texts, onWaiting, onFailure }) {
  const live = new AbortController();
  const retry = {
    maxNumRetry: RETRIES,
    retryDelayMs: 500,
    maxRetryDelayMs: 3_000,
    backoff: "linear",
    // The stock rule gives up on an unreachable server while the device itself is on line.
    shouldRetry: (policy, count, isTimeout, response) => {
      const status = response?.code ?? 0;
      // 502 is an encoder's own failure: once more, for it may have been the way there; a dozen times is no use.
      const most = status === 502 ? 1 : (policy?.maxNumRetry ?? 0);
      return count < most && (isTimeout || status === 0 || status === 429 || status >= 500);
    },
  };
  const policy = { default: { maxTimeToFirstByteMs: FIRST_BYTE_MS, maxLoadTimeMs: 120_000, timeoutRetry: retry, errorRetry: retry } };
  const hls = new Hls({
    startPosition: startSeconds,
    maxBufferLength: 30,
    maxMaxBufferLength: 60,
    backBufferLength: 60,
    capLevelToPlayerSize: true,
    abrEwmaDefaultEstimate: FIRST_ESTIMATE,
    abrEwmaDefaultEstimateMax: FIRST_ESTIMATE,
    testBandwidth: false,
    // Text tracks are whole files that any browser shows; hls.js would draw them with what the page's policy refuses.
    subtitleTrackController: undefined,
    subtitleStreamController: undefined,
    timelineController: undefined,
    manifestLoadPolicy: policy,
    playlistLoadPolicy: policy,
    fragLoadPolicy: policy,
  });
  let mended = -Infinity; // the position at which a media error was last recovered from
  let waiting = false;

  hls.on(Hls.Events.FRAG_BUFFERED, () => {
    if (waiting) onWaiting(null);
    waiting = false;
  });
  hls.on(Hls.Events.ERROR, (_, data) => {
    if (data.type === Hls.ErrorTypes.NETWORK_ERROR) {
      // What hls.js took back itself, as it does with half of a segment whose other half was refused, is no news.
      if (data.details === Hls.ErrorDetails.INTERNAL_ABORTED && !data.fatal) return;
      const error = networkError(data);
      waiting = true;
      // An encoder that hung took half a minute to be found out, and hls.js would try the next quality, and the next.
      const hopeless = error.code === "stalled";
      if (hopeless) hls.stopLoad();
      if (data.fatal || hopeless) onFailure(error);
      else onWaiting(error);
      return;
    }
    if (!data.fatal) return;
    // Recovering twice at the same place would go on for ever.
    if (data.type === Hls.ErrorTypes.MEDIA_ERROR && Math.abs(video.currentTime - mended) > 5) {
      mended = video.currentTime;
      const playing = !video.paused;
      hls.recoverMediaError();
      if (playing) video.play().catch(() => {});
      return;
    }
    const codecs = [Hls.ErrorDetails.MANIFEST_INCOMPATIBLE_CODECS_ERROR, Hls.ErrorDetails.BUFFER_ADD_CODEC_ERROR, Hls.ErrorDetails.BUFFER_INCOMPATIBLE_CODECS_ERROR];
    onFailure(new ApiError({ code: codecs.includes(data.details) ? "unplayable" : "decode" }));
  });
  hls.loadSource(url);
  hls.attachMedia(video);
  return {
    name: `hls.js ${Hls.version}`,
    retry() {
      if (hls.levels.length === 0) hls.loadSource(url);
      else hls.startLoad(video.currentTime || startSeconds);
    },
    caption: captions(video, texts, { own: false, signal: live.signal }),
    hear(n) {
      if (!hls.audioTracks[n]) return false;
      hls.audioTrack = n;
      return true;
    },
    show(height) {
      const level = height === null ? -1 : hls.levels.findIndex((each) => each.height === height);
      if (height !== null && level < 0) return false;
      // The viewer's word counts whatever the size of the player.
      hls.autoLevelCapping = -1;
      hls.nextLevel = level;
      return true;
    },
    detach() {
      live.abort();
      hls.destroy();
      empty(video);
    },
  };
}

/** The server's own words about a refused playlist or segment, as hls.js hands them over. */
function networkError(data) {
  const status = data.response?.code ?? 0;
  if (status < 400) return new ApiError({ code: /timeout/i.test(data.details) ? "timeout" : "offline" });
  return refusal(status, bodyText(data.networkDetails), header(data.networkDetails, "Retry-After"));
}

function bodyText(request) {
  try {
    if (typeof request.response === "string") return request.response;
    if (request.response instanceof ArrayBuffer) return new TextDecoder().decode(request.response);
  } catch {
    // Aborted, or gone with its worker: the status has to do.
  }
  return "";
}

function header(request, name) {
  try {
    return request.getResponseHeader(name);
  } catch {
    return null;
  }
}

function empty(video) {
  video.removeAttribute("src");
  video.load();
}

let library = null;

/** Loaded when first needed: a browser with its own HLS never pays for it. */
function loadHls() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = LIBRARY;
    script.onload = () => resolve(globalThis.Hls);
    script.onerror = () => {
      library = null;
      script.remove();
      reject(new ApiError({ code: "player_missing" }));
    };
    document.head.append(script);
  });
  return library;
}
