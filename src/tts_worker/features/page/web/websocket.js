/**
 * The WebSocket transport of a connection: JSON messages as text frames, PCM as binary frames. See connection.js.
 */
import { subprotocols } from "./access.js";

/** @param {{message(message: object): void, audio(pcm: ArrayBuffer): void, closed(end: object): void}} handlers */
export function openWebSocket(handlers) {
  const url = new URL("/v1/stream", location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(url, subprotocols());
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => (typeof data === "string" ? handlers.message(JSON.parse(data)) : handlers.audio(data));
  socket.onclose = ({ reason }) => handlers.closed({ reason });
  return {
    send: (message) => socket.send(JSON.stringify(message)),
    close: () => socket.close(),
  };
}
