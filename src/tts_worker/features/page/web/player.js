/**
 * Plays PCM: the audio context, and the messages to and from the audio thread (player-worklet.js).
 *
 * One utterance at a time. It owns the audio output and knows when a sample is heard; it does not know where audio comes
 * from or what it says. Messages sent before the audio thread runs are queued, so that the network need not wait.
 */
import { outputLatencyMs, startOutput } from "./audio-output.js";
import { RATE_HZ } from "./wire.js";

/** How long a stop waits for the exact position from the audio thread; after that the last known one is used. */
const CUT_TIMEOUT_MS = 250;

export class Player {
  #listener;
  #context = null;
  #analyser = null;
  #port = null;
  #opening = null;
  #queued = []; // messages for an audio thread that does not run yet
  #utterance = 0;
  #active = false;
  #playedSamples = 0;
  #stops = new Map(); // utterance -> the resolvers of its stop

  /**
   * @param {{first(atMs: number): void, position(playedSamples: number): void, underrun(): void,
   *   ended(playedSamples: number): void, interrupted(): void, notStarted(): void}} listener events of the current
   *   utterance; `notStarted`: the browser has not started the audio output so far
   */
  constructor(listener) {
    this.#listener = listener;
  }

  /**
   * Start the audio output; call it from a click or a key, as browsers require. Idempotent.
   * Rejects with an Error for the user where the browser cannot play 24 kHz through an AudioWorklet.
   */
  async open() {
    this.#opening ??= this.#build();
    try {
      await this.#opening;
    } catch (error) {
      this.#opening = null;
      throw new Error("This browser cannot play the audio: it needs an AudioWorklet at 24 kHz.", { cause: error });
    }
    await startOutput(this.#context, () => this.#active && this.#listener.notStarted());
  }

  /** An AnalyserNode on the output, or null before `open`. */
  get analyser() {
    return this.#analyser;
  }

  /** From rendering a sample to hearing it, as reported by the browser. */
  get outputLatencyMs() {
    return this.#context ? outputLatencyMs(this.#context) : 0;
  }

  begin() {
    this.#utterance += 1;
    this.#active = true;
    this.#playedSamples = 0;
    this.#post({ type: "begin", utterance: this.#utterance });
  }

  /** @param {ArrayBuffer} pcm s16le mono at 24 kHz; it is transferred and cannot be used afterwards */
  push(pcm) {
    this.#post({ type: "push", pcm }, [pcm]);
  }

  /** All audio of the utterance was pushed. */
  end() {
    this.#post({ type: "end" });
  }

  pause() {
    this.#post({ type: "pause" });
  }

  resume() {
    this.#post({ type: "resume" });
    // The browser or the system may have suspended the output; this is a click, so it may be resumed.
    if (this.#context && this.#context.state !== "running") this.#context.resume().catch(() => {});
  }

  /**
   * Silence, now. Resolves with the exact position at the cut; `silent` resolves with the time at which the last sample
   * of the utterance was rendered (never, if the audio thread does not run).
   * @returns {Promise<{playedSamples: number, silent: Promise<number>}>}
   */
  async stop() {
    if (!this.#active) return { playedSamples: this.#playedSamples, silent: Promise.resolve(Date.now()) };
    this.#active = false;
    if (!this.#port) {
      this.#queued = [];
      return { playedSamples: 0, silent: Promise.resolve(Date.now()) };
    }
    const utterance = this.#utterance;
    const resolve = {};
    const silent = new Promise((resolved) => (resolve.silent = resolved));
    const cut = new Promise((resolved) => (resolve.cut = resolved));
    this.#stops.set(utterance, resolve);
    const timer = setTimeout(() => resolve.cut(this.#playedSamples), CUT_TIMEOUT_MS);
    this.#post({ type: "stop", utterance });
    this.#playedSamples = await cut;
    clearTimeout(timer);
    return { playedSamples: this.#playedSamples, silent };
  }

  #post(message, transfer = []) {
    if (this.#port) this.#port.postMessage(message, transfer);
    else this.#queued.push(message);
  }

  async #build() {
    const context = new AudioContext({ sampleRate: RATE_HZ, latencyHint: "interactive" });
    try {
      await context.audioWorklet.addModule(new URL("player-worklet.js", import.meta.url));
      const node = new AudioWorkletNode(context, "player", { numberOfInputs: 0, outputChannelCount: [1] });
      this.#analyser = new AnalyserNode(context, { fftSize: 1024 });
      node.connect(this.#analyser).connect(context.destination);
      node.port.onmessage = ({ data }) => this.#onMessage(data);
      this.#port = node.port;
    } catch (error) {
      await context.close();
      throw error;
    }
    this.#context = context;
    context.onstatechange = () => {
      if (context.state !== "running" && this.#active) this.#listener.interrupted();
    };
    for (const message of this.#queued.splice(0)) this.#post(message, message.pcm ? [message.pcm] : []);
  }

  #onMessage(message) {
    switch (message.type) {
      case "cut":
        this.#stops.get(message.utterance)?.cut(message.playedSamples);
        return;
      case "silent":
        this.#stops.get(message.utterance)?.silent(message.atMs);
        this.#stops.delete(message.utterance);
        return;
    }
    if (!this.#active || message.utterance !== this.#utterance) return; // it was stopped meanwhile
    switch (message.type) {
      case "first":
        this.#listener.first(message.atMs);
        break;
      case "position":
        this.#playedSamples = message.playedSamples;
        this.#listener.position(message.playedSamples);
        break;
      case "underrun":
        this.#listener.underrun();
        break;
      case "ended":
        this.#active = false;
        this.#playedSamples = message.playedSamples;
        this.#listener.ended(message.playedSamples);
        break;
    }
  }
}
