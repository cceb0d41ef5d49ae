/**
 * The WebSocket of a conversation: JSON messages as text frames, audio as binary frames in both directions. It is a
 * transport of ../connection.js. The messages are listed in docs/agent.md.
 */
import { subprotocols } from "../access.js";
import { problemOf } from "../api.js";

/**
 * A transport whose agent has the voice that `voice` returns; null is the one of the server.
 * @param {() => string | null} voice
 */
export const agentTransport = (voice) => (handlers) => openAgentSocket(handlers, voice());

/** @param {{message(message: object): void, audio(pcm: ArrayBuffer): void, closed(end: object): void}} handlers */
function openAgentSocket(handlers, voice) {
  const url = new URL("/v1/agent", location.href);
  if (voice) url.searchParams.set("voice", voice);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(url, subprotocols());
  let problem; // why there is no conversation
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => {
    if (typeof data !== "string") {
      handlers.audio(data);
      return;
    }
    const message = JSON.parse(data);
    if (message.type === "refused") problem = problemOf(0, { error: message });
    else handlers.message(message);
  };
  socket.onclose = ({ reason }) => handlers.closed({ reason, problem });
  return {
    send: (message) => socket.send(message instanceof ArrayBuffer ? message : JSON.stringify(message)),
    close: () => socket.close(),
  };
}
