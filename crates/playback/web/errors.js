// What went wrong, said to a person, with what that person can do about it. The server's codes are the keys,
// and behind them, for codes that are newer than this page, its statuses; its own message, which names the file
// or the limit, stands below as the detail.

import { clock } from "./format.js";

/** What the button under an explanation does. */
export const Mend = Object.freeze({ RETRY: "retry", CONTINUE: "continue", LIBRARY: "library", NONE: "none" });

const WORDS = {
  offline: ["The server cannot be reached", "Check that it is running and that this device is on its network. Playback goes on from here.", Mend.RETRY],
  timeout: ["The server is not answering", "It may be busy or waking its disks. Try again in a moment.", Mend.RETRY],

  wrong_code: ["That link has been used, or it is too old", "Sign in with the token, or start the server again for a new link.", Mend.NONE],
  grant_expired: ["This playback's time is over", "Films may be watched for some hours in one go. You can go on where you were.", Mend.CONTINUE],
  too_many_attempts: ["Too many attempts", "Wait a minute, then try again.", Mend.RETRY],

  no_such_item: ["This title is no longer here", "Its file may have been moved or removed since the list was made.", Mend.LIBRARY],
  folder_missing: ["The folder of this title is not there", "Plug in or mount its disk or share again. Its titles are kept.", Mend.RETRY],
  file_gone: ["The file is gone", "It was moved or removed, or its disk or share is not mounted.", Mend.LIBRARY],
  file_changed: ["The file was replaced", "It was rewritten since this playback began. Start it again to see the new one.", Mend.CONTINUE],
  file_unreadable: ["The file cannot be read", "Check the disk or share that it is on, and who may read it.", Mend.RETRY],
  source_changed: ["The file was replaced", "It was rewritten while it was played. Start it again to see the new one.", Mend.CONTINUE],
  source_lost: ["The file can no longer be read", "Check the disk or share that it is on.", Mend.CONTINUE],
  source_truncated: ["The file ends early", "It was probably not copied completely. What is there can be watched; the rest needs a whole file.", Mend.NONE],
  source_ended: ["The file ends early", "It was probably not copied completely. What is there can be watched; the rest needs a whole file.", Mend.NONE],

  nothing_to_play: ["There is nothing to play in it", "The file has neither a moving picture nor sound.", Mend.LIBRARY],
  no_such_stream: ["That track is not in the file", "Choose another one.", Mend.RETRY],
  cannot_burn: ["These subtitles cannot be shown that way", "Choose others, or none.", Mend.NONE],
  cannot_copy: ["The original picture cannot be shown here", "The server can convert it while you watch.", Mend.NONE],
  length_unknown: ["The file does not say how long it is", "It may be damaged, or still being written. Repackaging it (with ffmpeg -c copy) mends this.", Mend.LIBRARY],
  cannot_cut: ["The file cannot be cut into parts to send", "Repackaging it (with ffmpeg -c copy) may mend this.", Mend.LIBRARY],
  start_past_end: ["That is past the end", "Start it from the beginning.", Mend.NONE],
  encoder_lacks: ["The server's FFmpeg lacks something for this file", "Install a complete FFmpeg on the server.", Mend.LIBRARY],
  encoder_unsupported: ["The server cannot convert this file that way", "Choose another quality.", Mend.RETRY],

  capacity_encoders: ["All encoders are busy", "Stop another playback, or try again in a moment.", Mend.RETRY],
  capacity_device: ["The encoder is busy", "Stop another playback, or try again in a moment.", Mend.RETRY],
  capacity_queue_full: ["Too many are waiting already", "Try again in a moment.", Mend.RETRY],
  capacity_scratch: ["The space for converted films is used up", "Stop another playback, or give the server more room for scratch files.", Mend.RETRY],
  capacity_none: ["This server converts nothing", "It was started without room for encoders. Only what this browser shows as it is can be watched.", Mend.LIBRARY],
  too_many_sessions: ["Too many playbacks are open", "Close some, or try again in a moment.", Mend.RETRY],
  too_many_of_yours: ["Too many playbacks are open with this sign-in", "Close some of them, on other devices too, then try again.", Mend.RETRY],
  scratch_full: ["The server's disk is full", "Free some space where it keeps its scratch files, then try again.", Mend.CONTINUE],
  segment_too_large: ["One part of this film is larger than the server's scratch space", "Choose another quality, so that the server encodes it, or start the server with more (--scratch).", Mend.CONTINUE],
  closed: ["The server is about to stop", "It takes no new playbacks. Try again when it is back.", Mend.RETRY],
  encoder_not_started: ["The encoder could not be started", "Check that FFmpeg is installed on the server; its log says more.", Mend.RETRY],
  encoder_failed: ["FFmpeg gave up on this file", "A part of it may be damaged. Going on a little later may get past it.", Mend.CONTINUE],
  output_unreadable: ["FFmpeg gave up on this file", "A part of it may be damaged. Going on a little later may get past it.", Mend.CONTINUE],
  not_ready: ["This part does not get ready", "The server's encoder is stuck, or too slow for this quality. A lower one may help.", Mend.CONTINUE],
  stalled: ["The encoder got stuck", "Trying again starts a new one.", Mend.CONTINUE],
  bound_violated: ["The encoder lost its place", "Trying again starts a new one.", Mend.CONTINUE],
  configuration_changed: ["The encoder lost its place", "Trying again starts a new one.", Mend.CONTINUE],

  stopped: ["This playback was stopped", "It was ended from elsewhere. You can go on where you were.", Mend.CONTINUE],
  expired: ["This playback's time is over", "Films may be watched for some hours in one go. You can go on where you were.", Mend.CONTINUE],
  displaced: ["This playback made room for another", "It had been idle for long. You can go on where you were.", Mend.CONTINUE],
  shutdown: ["The server is stopping", "When it is back, you can go on where you were.", Mend.CONTINUE],

  cross_site: ["This page may not do that here", "The server takes changes from its own page alone. Where a proxy gives it another address, start it with --origin and that address.", Mend.NONE],

  http_401: ["You are signed out", "Sign in again to go on.", Mend.NONE],
  http_403: ["This is not allowed", "This sign-in may not do that. Sign in with the owner's token.", Mend.LIBRARY],
  http_404: ["This is no longer here", "The file may have been moved or removed since the list was made.", Mend.LIBRARY],
  http_410: ["This playback has ended on the server", "It was stopped, or was idle for too long. You can go on where you were.", Mend.CONTINUE],
  http_421: ["The server does not go by this address", "Open the page by the address that the server printed, or start it with this name too (ether serve --host NAME).", Mend.NONE],
  http_429: ["Too many attempts", "Wait a minute, then try again.", Mend.RETRY],
  http_500: ["The server had a fault", "Its log says more. Trying again may help.", Mend.RETRY],
  http_502: ["The encoder was lost", "The server noticed. Trying again starts a new one.", Mend.CONTINUE],
  http_503: ["The server is busy", "All its encoders are at work. Stop another playback, or try again in a moment.", Mend.RETRY],
  http_504: ["The encoder does not answer", "Trying again starts a new one.", Mend.CONTINUE],
  http_507: ["The server's disk is full", "Free some space where it keeps its scratch files, then try again.", Mend.RETRY],

  decode: ["This browser could not play it", "It gave up on the picture or the sound. A lower quality makes the server encode it anew.", Mend.CONTINUE],
  unplayable: ["This browser cannot play this format", "Choose another quality, so that the server encodes it.", Mend.CONTINUE],
  no_player: ["This browser cannot play streams", "It offers neither HLS nor Media Source Extensions. Use a current Firefox, Chrome, Edge or Safari.", Mend.LIBRARY],
  player_missing: ["The player could not be loaded", "A part of this page is missing. Reload it.", Mend.RETRY],
};

/** `{ title, advice, detail, mend, sentence }` for an ApiError or anything thrown. */
export function explain(error) {
  const status = error?.status ?? 0;
  const known = WORDS[error?.code] ?? WORDS[`http_${status}`] ?? (status >= 500 ? WORDS.http_500 : null);
  const said = typeof error?.message === "string" && error.message !== error?.code ? error.message : "";
  const [title, advice, mend] = known ?? ["That did not work", "Try again; if it stays so, the server's log says more.", Mend.RETRY];
  // The server's sentence is shown where it says more than the title.
  const detail = said.toLowerCase() === title.toLowerCase() ? "" : said;
  const end = error?.fields?.endMs;
  if (Number.isFinite(end)) return { title: `The file ends at ${clock(end / 1000)}`, advice, detail, mend, sentence: `${title}: ${detail}` };
  return { title, advice, detail, mend, sentence: detail ? `${title}: ${detail}` : `${title}. ${advice}` };
}
