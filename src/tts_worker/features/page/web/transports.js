/**
 * The transports of the page by name: how each is labeled, where it is served, and what a SpeechSession needs of it.
 */
import { Player } from "./player.js";
import { webRtcTransport } from "./webrtc/transport.js";
import { openWebSocket } from "./websocket.js";

export const TRANSPORTS = {
  websocket: {
    label: "WebSocket",
    path: "/",
    create: () => ({ createPlayer: (listener) => new Player(listener), openTransport: openWebSocket, showStopParts() {} }),
  },
  webrtc: { label: "WebRTC", path: "/webrtc", create: webRtcTransport },
};

/** The transport of the address that was opened. */
export const openedTransport = () => (location.pathname === TRANSPORTS.webrtc.path ? "webrtc" : "websocket");

/**
 * The other pages that the server has: by path the reason for which one does not work here, or null.
 * Null if the server cannot be reached, which the connection shows.
 */
export async function otherPages() {
  try {
    const response = await fetch("/static/pages.json");
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}
