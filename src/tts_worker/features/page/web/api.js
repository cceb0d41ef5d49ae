/**
 * The HTTP side of the server as the page needs it: tokens, voices, speech, and why a connection was refused.
 *
 * A browser does not tell a page why a WebSocket was refused, so `whyRefused` asks the health endpoint and the voices.
 */
import { authorization, tokenStore } from "./access.js";

export const UNREACHABLE = { kind: "unreachable", text: "The server cannot be reached." };
const FULL = { kind: "full", text: "The server is full: every session is taken." };
const STARTING = { kind: "starting", text: "The server is not ready yet." };
const DRAINING = { kind: "draining", text: "The server is shutting down." };

/** What an HTTP error response means for the user. @returns {{kind: string, text: string}} */
export function problemOf(status, body) {
  switch (body?.error?.code) {
    case "over_capacity":
      return FULL;
    case "not_ready":
      return STARTING;
    case "draining":
      return DRAINING;
  }
  const message = body?.error?.message ?? `HTTP status ${status}`;
  switch (status) {
    case 401:
      return {
        kind: "key",
        text: tokenStore.token ? "Access has ended: enter the API key again." : "This server needs an API key.",
      };
    case 501:
      return { kind: "unsupported", text: `The server does not offer this: ${message}.` };
  }
  return { kind: "refused", text: `The server refused: ${message}` };
}

/** A token lasts for so long, for so many sessions: two transports, samples, other tabs. */
const TOKEN_S = 3600;
const TOKEN_SESSIONS = 8;
/** What a token may do; not every key may add voices. */
const TOKEN_SCOPES = [["speak", "enroll"], ["speak"]];

/** Exchange an API key for a token. Rejects with an Error for the user. @param {string} key */
export async function unlock(key) {
  tokenStore.token = "";
  if (!/^[\x21-\x7e]+$/.test(key)) throw new Error("An API key has no spaces and no letters outside of ASCII.");
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${key}` };
  let response, body;
  for (const scopes of TOKEN_SCOPES) {
    const wanted = JSON.stringify({ seconds: TOKEN_S, sessions: TOKEN_SESSIONS, scopes });
    try {
      response = await fetch("/v1/tokens", { method: "POST", headers, body: wanted });
      body = await response.json();
    } catch (error) {
      throw new Error(UNREACHABLE.text, { cause: error });
    }
    if (response.status !== 403) break;
  }
  if (response.status === 401) throw new Error("The server did not accept this API key.");
  if (!response.ok) throw new Error(problemOf(response.status, body).text);
  tokenStore.token = body.token;
}

/** Whether the server's port accepts connections. A server that is slow to answer counts as reachable. */
export async function isReachable() {
  try {
    await fetch("/health/live", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    return true;
  } catch (error) {
    return error.name === "TimeoutError";
  }
}

/**
 * The voices, or why there are none.
 * @returns {Promise<{voices?: object[], canAdd?: boolean, problem?: {kind: string, text: string}}>}
 */
export async function fetchVoices() {
  let response, body;
  try {
    response = await fetch("/v1/voices", { headers: authorization(), cache: "no-store" });
    body = await response.json();
  } catch {
    return { problem: UNREACHABLE };
  }
  return response.ok ? { voices: body.voices, canAdd: Boolean(body.can_add) } : { problem: problemOf(response.status, body) };
}

/**
 * Synthesize a text over HTTP. Rejects with an Error for the user, also when `signal` aborts it.
 * @param {object} request the fields of `POST /v1/audio/speech`
 * @param {AbortSignal} signal
 * @returns {Promise<Blob>} a WAV file
 */
export async function synthesize(request, signal) {
  const headers = { "Content-Type": "application/json", ...authorization() };
  const body = JSON.stringify({ ...request, response_format: "wav" });
  let response;
  try {
    response = await fetch("/v1/audio/speech", { method: "POST", headers, body, signal });
    if (response.ok) return await response.blob();
  } catch (error) {
    throw new Error(UNREACHABLE.text, { cause: error });
  }
  throw new Error(problemOf(response.status, await response.json().catch(() => null)).text);
}

/** Send a request about voices. Rejects with an Error for the user. */
async function changeVoices(path, options) {
  let response, body;
  try {
    response = await fetch(`/v1/voices${path}`, { ...options, headers: authorization() });
    body = await response.json();
  } catch (error) {
    throw new Error(UNREACHABLE.text, { cause: error });
  }
  if (!response.ok) throw new Error(problemOf(response.status, body).text);
  return body;
}

/** Make a voice of a recording; see docs/voices.md. @param {FormData} fields @returns {Promise<object>} the voice */
export const addVoice = (fields) => changeVoices("", { method: "POST", body: fields });

/** @param {string} id of a voice that was added */
export const deleteVoice = (id) => changeVoices(`/${encodeURIComponent(id)}`, { method: "DELETE" });

/**
 * Why a WebSocket could not be opened.
 * @returns {Promise<{kind: "unreachable" | "starting" | "draining" | "key" | "refused" | "full", text: string}>}
 */
export async function whyRefused() {
  let status;
  try {
    status = (await (await fetch("/health/ready", { cache: "no-store" })).json()).status;
  } catch {
    return UNREACHABLE;
  }
  if (status === "draining") return DRAINING;
  const { problem } = await fetchVoices();
  if (problem) return problem;
  return status === "ready" ? FULL : STARTING;
}
