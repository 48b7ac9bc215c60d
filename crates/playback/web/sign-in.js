// Who is watching: a one-use code from the address bar, or a token typed in.

import { byId } from "./dom.js";
import { explain } from "./errors.js";

/**
 * Takes the one-use code out of the address bar, if there is one, before anything can copy, store or send the
 * address. Returns it, or null.
 */
export function takeCode() {
  const match = /^#code=([^&]+)/.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, "", `${location.pathname}${location.search}#/`);
  try {
    return decodeURIComponent(match[1]);
  } catch {
    return match[1];
  }
}

/** The sign-in form. `onSignedIn` is called after the server has accepted the token. */
export class SignInView {
  #api;
  #onSignedIn;
  #section = byId("sign-in");
  #input = byId("sign-in-token");
  #problem = byId("sign-in-problem");
  #button = byId("sign-in-form").querySelector("button");

  constructor(api, onSignedIn) {
    this.#api = api;
    this.#onSignedIn = onSignedIn;
    byId("sign-in-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  show(sentence = "") {
    document.title = "Sign in · ether";
    this.#section.hidden = false;
    this.#complain(sentence);
    this.#input.focus();
  }

  hide() {
    this.#section.hidden = true;
    this.#input.value = "";
  }

  async #submit() {
    const token = this.#input.value.trim();
    if (token === "") return;
    this.#button.disabled = true;
    this.#complain("");
    try {
      await this.#api.tryToken(token);
      this.#onSignedIn();
    } catch (error) {
      const words = error.status === 401
        ? "That token was not accepted. Check that all of it was copied, from this server's data directory."
        : explain(error).sentence;
      this.#complain(words);
      this.#input.focus();
      this.#input.select();
    } finally {
      this.#button.disabled = false;
    }
  }

  #complain(sentence) {
    this.#problem.textContent = sentence;
    this.#problem.hidden = sentence === "";
    this.#input.setAttribute("aria-invalid", String(sentence !== ""));
  }
}
