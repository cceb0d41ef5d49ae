/**
 * The page's side of the player: the audio context, and the messages to and from the audio thread (worklet.js).
 *
 * One turn at a time. It owns the audio hardware and knows when a sample is really heard; it must not know where sound
 * comes from or what it says. Messages sent before the audio thread is up wait for it, so that the network need not.
 */
import { RATE_HZ } from "./wire.js";

/** How long a stop waits for the audio thread to tell the exact position, before the last known one must do. */
const CUT_TIMEOUT_MS = 250;

export class Player {
  #listener;
  #context = null;
  #analyser = null;
  #port = null;
  #opening = null;
  #waiting = []; // messages for an audio thread that is not up yet
  #turn = 0;
  #active = false;
  #playedSamples = 0;
  #stops = new Map(); // turn -> who waits to hear of its end

  /**
   * @param {{first(atMs: number): void, position(playedSamples: number): void, dry(): void,
   *   ended(playedSamples: number): void, interrupted(): void}} listener what became of the current turn
   */
  constructor(listener) {
    this.#listener = listener;
  }

  /**
   * Bring the sound up; call it from a click or a key, browsers ask for that. Calling it again is fine.
   * Rejects where the browser cannot play 24 kHz through an AudioWorklet.
   */
  async open() {
    this.#opening ??= this.#build();
    try {
      await this.#opening;
    } catch (error) {
      this.#opening = null;
      throw error;
    }
    if (this.#context.state !== "running") await this.#context.resume();
  }

  /** An AnalyserNode on what is heard, or null before `open`. */
  get analyser() {
    return this.#analyser;
  }

  /** From rendering a sample to hearing it, as far as the browser knows. */
  get outputLatencyMs() {
    return (this.#context?.outputLatency || 0) * 1000;
  }

  begin() {
    this.#turn += 1;
    this.#active = true;
    this.#playedSamples = 0;
    this.#post({ type: "begin", turn: this.#turn });
  }

  /** @param {ArrayBuffer} pcm s16le mono at 24 kHz; it is handed over and cannot be used afterwards */
  push(pcm) {
    this.#post({ type: "push", pcm }, [pcm]);
  }

  /** All sound of the turn was pushed. */
  end() {
    this.#post({ type: "end" });
  }

  pause() {
    this.#post({ type: "pause" });
  }

  resume() {
    this.#post({ type: "resume" });
    // The browser or the system may have taken the sound away; this is a click, so it may be asked for again.
    if (this.#context && this.#context.state !== "running") this.#context.resume().catch(() => {});
  }

  /**
   * Silence, now. Resolves with the exact position at the cut; `silent` resolves with the time at which the last sample
   * of the old turn was rendered (never, if the audio thread does not run).
   * @returns {Promise<{playedSamples: number, silent: Promise<number>}>}
   */
  async stop() {
    if (!this.#active) return { playedSamples: this.#playedSamples, silent: Promise.resolve(Date.now()) };
    this.#active = false;
    if (!this.#port) {
      this.#waiting = [];
      return { playedSamples: 0, silent: Promise.resolve(Date.now()) };
    }
    const turn = this.#turn;
    const resolve = {};
    const silent = new Promise((resolved) => (resolve.silent = resolved));
    const cut = new Promise((resolved) => (resolve.cut = resolved));
    this.#stops.set(turn, resolve);
    const timer = setTimeout(() => resolve.cut(this.#playedSamples), CUT_TIMEOUT_MS);
    this.#post({ type: "stop", turn });
    this.#playedSamples = await cut;
    clearTimeout(timer);
    return { playedSamples: this.#playedSamples, silent };
  }

  #post(message, transfer = []) {
    if (this.#port) this.#port.postMessage(message, transfer);
    else this.#waiting.push(message);
  }

  async #build() {
    const context = new AudioContext({ sampleRate: RATE_HZ, latencyHint: "interactive" });
    try {
      await context.audioWorklet.addModule(new URL("worklet.js", import.meta.url));
      const node = new AudioWorkletNode(context, "player", { numberOfInputs: 0, outputChannelCount: [1] });
      this.#analyser = new AnalyserNode(context, { fftSize: 1024 });
      node.connect(this.#analyser).connect(context.destination);
      node.port.onmessage = ({ data }) => this.#heard(data);
      this.#port = node.port;
    } catch (error) {
      await context.close();
      throw error;
    }
    this.#context = context;
    context.onstatechange = () => {
      if (context.state !== "running" && this.#active) this.#listener.interrupted();
    };
    for (const message of this.#waiting.splice(0)) this.#post(message, message.pcm ? [message.pcm] : []);
  }

  #heard(message) {
    switch (message.type) {
      case "cut":
        this.#stops.get(message.turn)?.cut(message.playedSamples);
        return;
      case "silent":
        this.#stops.get(message.turn)?.silent(message.atMs);
        this.#stops.delete(message.turn);
        return;
    }
    if (!this.#active || message.turn !== this.#turn) return; // it was stopped in the meantime
    switch (message.type) {
      case "first":
        this.#listener.first(message.atMs);
        break;
      case "position":
        this.#playedSamples = message.playedSamples;
        this.#listener.position(message.playedSamples);
        break;
      case "dry":
        this.#listener.dry();
        break;
      case "ended":
        this.#active = false;
        this.#playedSamples = message.playedSamples;
        this.#listener.ended(message.playedSamples);
        break;
    }
  }
}
