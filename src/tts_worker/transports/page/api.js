/**
 * The worker's HTTP side as the page needs it: the API key, the list of voices, and why a connection was refused.
 *
 * The key lives in sessionStorage (this tab, until it is closed) and nowhere else. A browser does not tell a page why a
 * WebSocket was refused, so `whyRefused` asks the health endpoint and the voices instead.
 */

const STORAGE_KEY = "tts-worker.key";

export const keyring = {
  get key() {
    try {
      return sessionStorage.getItem(STORAGE_KEY) ?? "";
    } catch {
      return ""; // storage is switched off: the page works without a key
    }
  },
  /** @param {string} key empty forgets it */
  set key(key) {
    try {
      if (key) sessionStorage.setItem(STORAGE_KEY, key);
      else sessionStorage.removeItem(STORAGE_KEY);
    } catch {
      // storage is switched off
    }
  },
};

function authorization() {
  return keyring.key ? { Authorization: `Bearer ${keyring.key}` } : {};
}

/**
 * Subprotocols for a WebSocket: browsers can send the key in no other way.
 * @returns {string[]}
 */
export function subprotocols() {
  return keyring.key ? ["tts-worker", `key.${keyring.key}`] : ["tts-worker"];
}

/** Whether a browser can send this key with a WebSocket: it must be an HTTP token. */
export function isSendable(key) {
  return /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/.test(key);
}

const UNREACHABLE = { kind: "unreachable", text: "The worker cannot be reached." };

/**
 * The voices, or why there are none.
 * @returns {Promise<{voices?: object[], problem?: {kind: string, text: string}}>}
 */
export async function fetchVoices() {
  let response, body;
  try {
    response = await fetch("/v1/voices", { headers: authorization(), cache: "no-store" });
    body = await response.json();
  } catch {
    return { problem: UNREACHABLE };
  }
  if (response.ok) return { voices: body.voices };
  if (response.status === 401) {
    const text = keyring.key ? "The worker did not accept this API key." : "This worker needs an API key.";
    return { problem: { kind: "key", text } };
  }
  return { problem: { kind: "refused", text: `The worker refused: ${body.error?.message ?? response.status}` } };
}

/**
 * Why a WebSocket could not be opened, in plain words.
 * @returns {Promise<{kind: "unreachable" | "starting" | "draining" | "key" | "refused" | "full", text: string}>}
 */
export async function whyRefused() {
  let status;
  try {
    status = (await (await fetch("/health/ready", { cache: "no-store" })).json()).status;
  } catch {
    return UNREACHABLE;
  }
  if (status === "draining") return { kind: "draining", text: "The worker is shutting down." };
  const { problem } = await fetchVoices();
  if (problem) return problem;
  if (status !== "ready") return { kind: "starting", text: "The worker is not ready yet." };
  return { kind: "full", text: "The worker is full: every place is taken." };
}
