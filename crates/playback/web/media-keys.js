// The keys of keyboards, headsets and lock screens, where the browser passes them on.

/** `handlers`: what the session's actions do; `active()` says whether there is anything to act on. */
export function wireMediaKeys(handlers, active) {
  const session = navigator.mediaSession;
  if (!session) return;
  for (const [action, handler] of Object.entries(handlers)) {
    try {
      session.setActionHandler(action, (details) => { if (active()) handler(details ?? {}); });
    } catch {
      // This browser has no such key.
    }
  }
}

/** What the keys' owner is told of what plays; null when nothing does. */
export function nameForMediaKeys(title, pictureUrl = null) {
  const session = navigator.mediaSession;
  if (!session) return;
  session.metadata = title === null ? null : new MediaMetadata({ title, artwork: pictureUrl ? [{ src: pictureUrl }] : [] });
}
