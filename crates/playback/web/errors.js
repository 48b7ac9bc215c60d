// What went wrong, said to a person, with what that person can do about it. The server's codes are the keys;
// its own message, which names the file or the limit, stands below as the detail.

/** What the button under an explanation does. */
export const Mend = Object.freeze({ RETRY: "retry", CONTINUE: "continue", LIBRARY: "library", NONE: "none" });

const WORDS = {
  offline: ["The server cannot be reached", "Check that it is running and that this device is on its network. Playback goes on from here.", Mend.RETRY],
  timeout: ["The server is not answering", "It may be busy or waking its disks. Try again in a moment.", Mend.RETRY],
  http_401: ["You are signed out", "Sign in again to go on.", Mend.NONE],
  http_403: ["This is not allowed", "This sign-in may not do that. Sign in with the owner's token.", Mend.LIBRARY],
  http_404: ["This is no longer here", "The file may have been moved or removed since the list was made.", Mend.LIBRARY],
  http_410: ["This playback has ended on the server", "It was stopped, or was idle for too long. You can go on where you were.", Mend.CONTINUE],
  http_421: ["The server does not go by this address", "Open the page by the address that the server printed, or tell it this name when it starts.", Mend.NONE],
  http_429: ["Too many attempts", "Wait a minute, then try again.", Mend.RETRY],
  http_500: ["The server had a fault", "Its log says more. Trying again may help.", Mend.RETRY],
  http_502: ["The encoder was lost", "The server noticed. Trying again starts a new one.", Mend.CONTINUE],
  http_503: ["The server is busy", "All its encoders are at work. Stop another playback, or try again in a moment.", Mend.RETRY],
  http_504: ["The encoder does not answer", "Trying again starts a new one.", Mend.CONTINUE],
  http_507: ["The server's disk is full", "Free some space where it keeps its scratch files, then try again.", Mend.RETRY],
  source_ended: ["The file ends early", "It was probably not copied completely. What is there can be watched; the rest needs a whole file.", Mend.RETRY],
  decode: ["This browser could not play it", "It gave up on the picture or the sound. A lower quality makes the server encode it anew.", Mend.CONTINUE],
  unplayable: ["This browser cannot play this format", "Choose another quality, so that the server encodes it.", Mend.CONTINUE],
  no_player: ["This browser cannot play streams", "It offers neither HLS nor Media Source Extensions. Use a current Firefox, Chrome, Edge or Safari.", Mend.LIBRARY],
  player_missing: ["The player could not be loaded", "A part of this page is missing. Reload it.", Mend.RETRY],
};

/** `{ title, advice, detail, mend, sentence }` for an ApiError or anything thrown. */
export function explain(error) {
  const status = error?.status ?? 0;
  const known = WORDS[error?.code] ?? WORDS[`http_${status}`] ?? (status >= 500 ? WORDS.http_500 : null);
  const detail = typeof error?.message === "string" && error.message !== error?.code ? error.message : "";
  const [title, advice, mend] = known ?? ["That did not work", "Try again; if it stays so, the server's log says more.", Mend.RETRY];
  return { title, advice, detail, mend, sentence: detail ? `${title}: ${detail}` : `${title}. ${advice}` };
}
