// Subtitle tracks in words, and which one a viewer wants: none until they choose one, then that language everywhere.

const KEPT = "ether.subtitle";

/** Names of languages in the viewer's own. */
function languageName(code) {
  try {
    return new Intl.DisplayNames([navigator.language], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

/** What a track is called; empty where it says nothing of itself. */
export function subtitleWords({ language, title }) {
  return [language ? languageName(language) : "", title ?? ""].filter(Boolean).join(", ");
}

export function subtitleHint({ forced, hearingImpaired, external, text }) {
  return [
    forced ? "Only what is said in other languages" : "",
    hearingImpaired ? "For the hard of hearing" : "",
    external ? "A file beside the film" : "",
    text ? "" : "Drawn into the picture by the server",
  ].filter(Boolean).join(" · ");
}

/** The track of `item` in the language that was chosen last; null where none was, or it has none. */
export function wantedSubtitle(item) {
  const language = read();
  if (!language) return null;
  const fitting = (item.subtitles ?? []).filter((track) => track.language === language);
  // Text comes at once and costs nothing; pictures are drawn by an encoder, so they are chosen by hand only.
  const texts = fitting.filter((track) => track.text);
  return (texts.find((track) => !track.forced) ?? texts[0])?.stream ?? null;
}

/** Remembers the language of what was chosen, or that nothing is to be shown. */
export function keepSubtitle(item, stream) {
  const language = (item?.subtitles ?? []).find((track) => track.stream === stream)?.language ?? "";
  try {
    localStorage.setItem(KEPT, language);
  } catch {
    // A browser that keeps nothing asks again.
  }
}

function read() {
  try {
    return localStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}
