/**
 * The WebSocket to the worker: opens it, keeps it, notices when it is gone, and opens it again with growing pauses.
 *
 * It owns the socket and the reasons why there is none; messages pass through it unread. It must not know what is being
 * said or heard.
 */
import { subprotocols, whyRefused } from "./api.js";

const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 8000;
/** A connection that answers nothing for one to two of these is dead, whatever the browser thinks. */
const HEARTBEAT_MS = 10000;

export class Connection {
  #listener;
  #socket = null;
  #ready = false;
  #failures = 0;
  #retry = 0;
  #heartbeat = 0;
  #pinged = false;
  #dial = 0; // numbers the attempts, so that what an old one finds out late is not believed

  /**
   * @param {{connecting(): void, ready(): void, offline(problem: {kind: string, text: string}): void,
   *   message(message: object): void, sound(pcm: ArrayBuffer): void}} listener
   *   `offline` is final only for the kind "key"; for all others another attempt is already planned.
   */
  constructor(listener) {
    this.#listener = listener;
  }

  get ready() {
    return this.#ready;
  }

  /** Open the connection now, also while waiting to try again. One that is open or being opened is left alone. */
  open() {
    if (this.#socket) return;
    clearTimeout(this.#retry);
    this.#dial += 1;
    this.#listener.connecting();
    const url = new URL("/v1/stream", location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url, subprotocols());
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => {
      if (socket === this.#socket) this.#receive(data);
    };
    socket.onclose = ({ reason }) => {
      if (socket === this.#socket) this.#closed(reason);
    };
    this.#socket = socket;
  }

  /** Send a message; it is dropped if there is no connection, and the listener hears of that as `offline`. */
  send(message) {
    if (this.#ready) this.#socket.send(JSON.stringify(message));
  }

  #receive(data) {
    this.#pinged = false;
    if (typeof data !== "string") {
      this.#listener.sound(data);
      return;
    }
    const message = JSON.parse(data);
    if (message.type === "ready" && !this.#ready) {
      this.#ready = true;
      this.#failures = 0;
      this.#heartbeat = setInterval(() => this.#beat(), HEARTBEAT_MS);
      this.#listener.ready();
    }
    if (message.type !== "pong") this.#listener.message(message);
  }

  #beat() {
    if (this.#pinged) {
      this.#socket.close();
      this.#closed("it stopped answering"); // the browser would wait for the other side's farewell
      return;
    }
    this.#pinged = true;
    this.send({ type: "ping" });
  }

  async #closed(reason) {
    const wasReady = this.#ready;
    clearInterval(this.#heartbeat);
    this.#socket = null;
    this.#ready = false;
    this.#pinged = false;
    if (wasReady) {
      this.#listener.offline({ kind: "lost", text: `The connection was lost${reason ? `: ${reason}` : ""}.` });
      this.#tryAgain();
      return;
    }
    const dial = this.#dial;
    const problem = await whyRefused();
    if (dial !== this.#dial) return;
    this.#failures += 1;
    if (problem.kind !== "key") this.#tryAgain();
    this.#listener.offline(problem);
  }

  #tryAgain() {
    const pauseMs = Math.min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2 ** this.#failures);
    // Not all pages at once when a worker comes back.
    this.#retry = setTimeout(() => this.open(), pauseMs * (0.75 + Math.random() / 2));
  }
}
