/**
 * Access to a server that needs an API key: a short-lived token, for which api.js exchanges the key of the user.
 *
 * The key is kept nowhere. The token lives in sessionStorage (this tab, until it is closed) and nowhere else, and the
 * server ends it within the hour. Offers: tokenStore, authorization, subprotocols.
 */

const STORAGE_KEY = "tts-worker.token";

export const tokenStore = {
  get token() {
    try {
      return sessionStorage.getItem(STORAGE_KEY) ?? "";
    } catch {
      return ""; // storage is disabled: the page works without a key
    }
  },
  /** @param {string} token an empty string removes it */
  set token(token) {
    try {
      if (token) sessionStorage.setItem(STORAGE_KEY, token);
      else sessionStorage.removeItem(STORAGE_KEY);
    } catch {
      // storage is disabled
    }
  },
};

/** The header that carries the token, if there is one. */
export function authorization() {
  return tokenStore.token ? { Authorization: `Bearer ${tokenStore.token}` } : {};
}

/**
 * Subprotocols for a WebSocket: browsers can send a token in no other way.
 * @returns {string[]}
 */
export function subprotocols() {
  return tokenStore.token ? ["tts-worker", `key.${tokenStore.token}`] : ["tts-worker"];
}
