// The page's beginning: signs in, and shows the view that the address names.

import { Api } from "./api.js";
import { byId } from "./dom.js";
import { explain } from "./errors.js";
import { LibraryView } from "./library.js";
import { SignInView, takeCode } from "./sign-in.js";
import { WatchView } from "./watch.js";

// First of all, so that no later failure leaves the code in the address bar.
const code = takeCode();

const api = new Api();
const library = new LibraryView(api, { onSignOut: signOut });
const watch = new WatchView(api, { onPosition: (id, ms, finished) => library.notePosition(id, ms, finished) });
const signIn = new SignInView(api, () => {
  signIn.hide();
  route();
});

let shown = null;

api.onUnauthorized = () => askToSignIn("You are signed out: the server no longer accepts this browser's token.");

function askToSignIn(sentence) {
  // The view first: what it still has to tell the server needs the token.
  show(null);
  api.forgetToken();
  signIn.show(sentence);
}

function signOut() {
  // The page is signed out whatever becomes of this.
  api.signOut().catch(() => {});
  askToSignIn("");
}

function show(view, argument) {
  if (shown && shown !== view) shown.hide();
  shown = view;
  if (view) view.show(argument);
}

function route() {
  if (!api.signedIn) {
    show(null);
    signIn.show();
    return;
  }
  const match = /^#\/watch\/([^/?]+)$/.exec(location.hash);
  if (match) show(watch, decodeURIComponent(match[1]));
  else show(library);
}

async function start() {
  if (code !== null) {
    try {
      await api.exchangeCode(code);
    } catch (error) {
      // A used code is no reason to sign out someone who is signed in already.
      if (!api.signedIn) {
        signIn.show(error.status === 401
          ? "That link has been used, or it is too old. Sign in with the token, or start the server again for a new link."
          : explain(error).sentence);
        return;
      }
    }
  }
  route();
}

addEventListener("hashchange", () => {
  // A link with a code opened in the same tab.
  const late = takeCode();
  if (late === null) route();
  else api.exchangeCode(late).catch(() => {}).finally(() => { signIn.hide(); route(); });
});

byId("skip").addEventListener("click", (event) => {
  // The fragment is the router's; only the focus has to move.
  event.preventDefault();
  byId("main").focus();
});

start();
