/**
 * The connection to the server: opens it, watches it, reports its state, and opens it again with growing delays.
 *
 * It owns the transport (websocket.js or webrtc/peer.js) and the reason why there is none; messages pass through it
 * unread. It does not know utterances or audio.
 *
 * States: connecting, ready, unresponsive (open, but pings are not answered), reconnecting, and those with a problem:
 * gone, full, starting, draining, locked (an API key is needed), refused, unsupported.
 */
import { isReachable, whyRefused } from "./api.js";

const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 8000;
/** An attempt that has neither succeeded nor failed after this long is given up. */
const OPEN_TIMEOUT_MS = 12000;

/** A ping is sent this often. Three of them make the 3 s within which a silent server shows on the page. */
const HEARTBEAT_MS = 900;
/** Unanswered pings after which the page says so, and after which the connection is given up. */
const UNRESPONSIVE_PINGS = 2;
const LOST_PINGS = 10;

const STATE_OF_PROBLEM = {
  lost: "reconnecting",
  unreachable: "gone",
  full: "full",
  starting: "starting",
  draining: "draining",
  key: "locked",
  refused: "refused",
  unsupported: "unsupported",
};
/** Trying again does not help: the user has to do something first. */
const FINAL = ["key", "unsupported"];

export class Connection {
  #listener;
  #openTransport;
  #transport = null;
  #ready = false;
  #wasReady = false;
  #failures = 0;
  #retryTimer = 0;
  #openTimer = 0;
  #heartbeat = 0;
  #unansweredPings = 0;
  #attempt = 0; // a late result of an earlier attempt is ignored

  /**
   * @param {{state(state: string, problem: {kind: string, text: string} | null): void, message(message: object): void,
   *   audio(pcm: ArrayBuffer): void}} listener
   *   `problem` is set whenever there is no connection; unless it needs the user, another attempt is already scheduled
   * @param {(handlers: object) => {send(message: object): void, close(): void}} openTransport
   *   calls `handlers.message`, `handlers.audio` and, once, `handlers.closed({reason?, problem?})`
   */
  constructor(listener, openTransport) {
    this.#listener = listener;
    this.#openTransport = openTransport;
  }

  get ready() {
    return this.#ready;
  }

  /** Connect now, without waiting for the next retry. Does nothing while a connection is open or being opened. */
  open() {
    if (this.#transport) return;
    this.#listener.state(this.#wasReady ? "reconnecting" : "connecting", null);
    this.#dial();
  }

  /** Send a message. Without a connection it is dropped; the listener has been told through `state`. */
  send(message) {
    if (this.#ready) this.#transport.send(message);
  }

  /** Close for good, for a page that is left: the server frees the session at once. `open` connects again. */
  close() {
    this.send({ type: "close" });
    this.#drop();
  }

  #dial() {
    clearTimeout(this.#retryTimer);
    this.#attempt += 1;
    const attempt = this.#attempt;
    const current = (handle) => (argument) => {
      if (attempt === this.#attempt && this.#transport) handle(argument);
    };
    this.#openTimer = setTimeout(
      current(() => this.#closed({ problem: { kind: "unreachable", text: "The server does not answer." } })),
      OPEN_TIMEOUT_MS,
    );
    this.#transport = this.#openTransport({
      message: current((message) => this.#receive(message)),
      audio: current((pcm) => {
        this.#answered();
        this.#listener.audio(pcm);
      }),
      closed: current((end) => this.#closed(end)),
    });
  }

  #receive(message) {
    if (message.type === "ready" && !this.#ready) {
      clearTimeout(this.#openTimer);
      this.#ready = this.#wasReady = true;
      this.#failures = 0;
      this.#heartbeat = setInterval(() => this.#beat(), HEARTBEAT_MS);
      this.#listener.state("ready", null);
    }
    this.#answered();
    if (message.type !== "pong") this.#listener.message(message);
  }

  #answered() {
    if (this.#unansweredPings > UNRESPONSIVE_PINGS) this.#listener.state("ready", null);
    this.#unansweredPings = 0;
  }

  /** Counts pings and not time: a page that was suspended first reads what arrived meanwhile. */
  #beat() {
    if (this.#unansweredPings >= LOST_PINGS) {
      this.#closed({ reason: "it stopped answering" });
      return;
    }
    if (this.#unansweredPings) this.#checkReachable();
    if (this.#unansweredPings === UNRESPONSIVE_PINGS) this.#listener.state("unresponsive", null);
    this.#unansweredPings += 1;
    this.send({ type: "ping" });
  }

  /** A process that was killed says no goodbye over WebRTC; its closed port tells within milliseconds. */
  async #checkReachable() {
    const attempt = this.#attempt;
    const reachable = await isReachable();
    if (!reachable && attempt === this.#attempt && this.#unansweredPings) {
      this.#closed({ problem: { kind: "unreachable", text: "The server is gone." } });
    }
  }

  async #closed({ reason, problem }) {
    const wasReady = this.#ready;
    this.#drop();
    if (wasReady) {
      this.#fail(problem ?? { kind: "lost", text: `The connection was lost${reason ? `: ${reason}` : ""}.` });
      return;
    }
    const attempt = this.#attempt;
    const cause = problem ?? (await whyRefused());
    if (attempt !== this.#attempt) return;
    this.#failures += 1;
    this.#fail(cause);
  }

  #drop() {
    clearTimeout(this.#retryTimer);
    clearTimeout(this.#openTimer);
    clearInterval(this.#heartbeat);
    this.#transport?.close();
    this.#transport = null;
    this.#attempt += 1;
    this.#ready = false;
    this.#unansweredPings = 0;
  }

  #fail(problem) {
    if (!FINAL.includes(problem.kind)) {
      const delayMs = Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** this.#failures);
      // Jitter: not all pages at once when a server comes back.
      this.#retryTimer = setTimeout(() => this.#dial(), delayMs * (0.75 + Math.random() / 2));
    }
    this.#listener.state(STATE_OF_PROBLEM[problem.kind], { ...problem, final: FINAL.includes(problem.kind) });
  }
}
