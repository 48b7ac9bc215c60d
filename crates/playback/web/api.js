// Everything the page asks of the server, and nothing else: one place for addresses, the token, time limits
// and the shape of a refusal.

/** A refusal or a failure, told apart by `code`: the server's own code, or `offline` / `timeout` of this page. */
export class ApiError extends Error {
  constructor({ status = 0, code, message, fields = {}, retryAfter = null }) {
    super(message || code);
    this.name = "ApiError";
    /** HTTP status; 0 when no answer came. */
    this.status = status;
    this.code = code;
    /** The body's other fields. */
    this.fields = fields;
    /** Seconds the server asked to wait, or null. */
    this.retryAfter = retryAfter;
  }

  /** No answer at all: the same request may succeed once the network is back. */
  get unreachable() {
    return this.status === 0;
  }
}

/** Reads a refusal's JSON; a proxy's HTML page becomes a code made of its status. */
export function refusal(status, text, retryAfterHeader = null) {
  let body = {};
  try {
    const parsed = JSON.parse(text);
    if (parsed && typeof parsed === "object") body = parsed;
  } catch {
    // Not ether's own words: the status has to do.
  }
  const { code, message, ...fields } = body;
  const seconds = Number.parseInt(retryAfterHeader ?? "", 10);
  return new ApiError({
    status,
    code: typeof code === "string" ? code : `http_${status}`,
    message: typeof message === "string" ? message : "",
    fields,
    retryAfter: Number.isFinite(seconds) ? seconds : null,
  });
}

/** 128 random bits as hex. `crypto.randomUUID` is missing on plain-http pages, `getRandomValues` is not. */
export function randomKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const TOKEN = "ether.token";

/** The signed-in server. `onUnauthorized` is called once whenever the token is refused. */
export class Api {
  #token;
  #onUnauthorized = () => {};

  constructor() {
    this.#token = readStored();
  }

  set onUnauthorized(callback) {
    this.#onUnauthorized = callback;
  }

  get signedIn() {
    return this.#token !== null;
  }

  /** Takes a token into use and keeps it for the next visit. */
  keepToken(token) {
    this.#token = token;
    try {
      localStorage.setItem(TOKEN, token);
    } catch {
      // Storage is off: signed in until the page is closed.
    }
  }

  forgetToken() {
    this.#token = null;
    try {
      localStorage.removeItem(TOKEN);
    } catch {
      // Nothing was kept.
    }
  }

  /** Exchanges a one-use code for a token. */
  async exchangeCode(code) {
    const { token } = await this.#json("POST", "/ether/api/sign-in", { body: { code }, anonymous: true });
    this.keepToken(token);
  }

  /** Whether the server accepts this token; throws the refusal otherwise. The answer itself is not needed. */
  async tryToken(token) {
    await this.#json("GET", "/ether/api/library?limit=1", { token });
    this.keepToken(token);
  }

  /** Tells the server to forget this token, which it does for a device's own; the owner's it keeps. */
  signOut() {
    return this.#send("DELETE", "/ether/api/sign-in", { keepalive: true });
  }

  /** The whole library, or null when it is still what `etag` named. Very large ones come in several pages. */
  async library(etag, signal) {
    const page = (query, headers = {}) => this.#send("GET", `/ether/api/library${query}`, { headers, signal, timeoutMs: 60_000 });
    const response = await page("", etag ? { "If-None-Match": etag } : {});
    if (response.status === 304) return null;
    const body = await response.json();
    if (!body.next) return { etag: response.headers.get("ETag"), body };
    for (let { next } = body; next;) {
      const more = await (await page(`?after=${encodeURIComponent(next)}`)).json();
      body.items.push(...more.items);
      next = more.next;
    }
    // The first page's tag says nothing of the others.
    return { etag: null, body };
  }

  scan() {
    return this.#send("POST", "/ether/api/library/scan");
  }

  item(id, signal) {
    return this.#json("GET", `/ether/api/items/${encodeURIComponent(id)}`, { signal });
  }

  /** A picture's bytes as a Blob. */
  async picture(path, signal) {
    const response = await this.#send("GET", path, { signal, timeoutMs: 60_000 });
    return response.blob();
  }

  /** `leaving`: the page is going away, and the request must outlive it. */
  keepPosition(id, positionMs, finished, { leaving = false } = {}) {
    return this.#send("PUT", `/ether/api/items/${encodeURIComponent(id)}/position`, {
      body: { positionMs: Math.round(positionMs), finished },
      keepalive: leaving,
    });
  }

  /** `key` makes a repeated request, sent after a lost answer, the same playback. */
  createSession(request, key, signal) {
    return this.#json("POST", "/ether/api/sessions", { body: request, headers: { "Idempotency-Key": key }, signal, timeoutMs: 30_000 });
  }

  session(id, signal) {
    return this.#json("GET", `/ether/api/sessions/${encodeURIComponent(id)}`, { signal });
  }

  reportState(id, state, positionMs) {
    return this.#send("POST", `/ether/api/sessions/${encodeURIComponent(id)}/state`, {
      body: { state, positionMs: Math.round(positionMs) },
    });
  }

  endSession(id, { leaving = false } = {}) {
    return this.#send("DELETE", `/ether/api/sessions/${encodeURIComponent(id)}`, { keepalive: leaving });
  }

  async #json(method, path, options) {
    const response = await this.#send(method, path, options);
    return response.json();
  }

  async #send(method, path, { body, headers = {}, signal, keepalive = false, timeoutMs = 15_000, token = this.#token, anonymous = false } = {}) {
    const timeout = AbortSignal.timeout(timeoutMs);
    const all = { ...headers };
    if (token !== null && !anonymous) all.Authorization = `Bearer ${token}`;
    if (body !== undefined) all["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method,
        headers: all,
        body: body === undefined ? undefined : JSON.stringify(body),
        signal: anySignal(signal, timeout),
        keepalive,
        credentials: "omit",
        referrerPolicy: "no-referrer",
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      if (timeout.aborted) throw new ApiError({ code: "timeout" });
      throw new ApiError({ code: "offline" });
    }
    if (response.ok || response.status === 304) return response;
    const error = refusal(response.status, await response.text().catch(() => ""), response.headers.get("Retry-After"));
    if (error.status === 401 && !anonymous && token === this.#token && token !== null) this.#onUnauthorized();
    throw error;
  }
}

function readStored() {
  try {
    return localStorage.getItem(TOKEN);
  } catch {
    return null;
  }
}

/** `AbortSignal.any` came late to browsers that can otherwise run this page. */
function anySignal(first, second) {
  if (!first) return second;
  if (AbortSignal.any) return AbortSignal.any([first, second]);
  const joined = new AbortController();
  for (const signal of [first, second]) {
    if (signal.aborted) joined.abort();
    signal.addEventListener("abort", () => joined.abort(), { once: true });
  }
  return joined.signal;
}
