// Waiting for what sends no event, such as a process that goes away: looked at again and again, up to a limit.

import { setTimeout as pause } from "node:timers/promises";

/** Resolves with the first truthy value of `look()`; after `limitMs` throws with `what` and the last value. */
export async function until(what, look, limitMs = 20_000) {
  const end = performance.now() + limitMs;
  for (;;) {
    const value = await look();
    if (value) return value;
    if (performance.now() > end) throw new Error(`waited ${limitMs} ms in vain for ${what}; last seen: ${JSON.stringify(value)}`);
    await pause(50);
  }
}
