/**
 * Plays the track of a WebRTC peer, with the interface of a Player (player.js): positions, end, and measured stops.
 *
 * A track has no sample positions. The server sends the message with a word just before the 20 ms of audio in which the
 * word begins, so each such message is an anchor: its word is heard one transit time later (network, jitter buffer,
 * decoder). The transit time is measured at the first loud audio of the utterance. After an underrun or a pause the next
 * anchor corrects the position.
 *
 * Audio that a stop makes stale is still in the jitter buffer: it is muted until the next utterance starts.
 */
import { outputLatencyMs, startOutput } from "../audio-output.js";
import { RATE_HZ } from "../wire.js";

const POSITION_INTERVAL_MS = 20;
const RAMP_S = 0.005;
/** After muting, the last loud sample has passed the ramp and the meter. */
const MUTED_MS = 60;
/** The largest plausible transit time: more means that the anchor and the loud audio do not belong together. */
const MAX_TRANSIT_MS = 500;
/** An utterance that the server has completed and that was never loud is silence, and ends after this. */
const SILENT_END_MS = 1000;

export class TrackPlayer {
  #listener;
  #context = new AudioContext({ latencyHint: "interactive" });
  #gain = this.#context.createGain();
  #analyser = new AnalyserNode(this.#context, { fftSize: 1024 });
  #element = new Audio();
  #node = null;
  #source = null;
  #loading = null;
  #queries = []; // resolvers of `lastLoud`
  #active = false;
  #timer = 0;
  #anchor = null; // {sample, atMs}: the server sent this sample then
  #limitSamples = Infinity; // no more than this was sent: a pause or the end of the utterance
  #transitMs = 0;
  #firstMs = null; // when the first loud audio of the utterance was played
  #completeAtMs = null; // when the server completed it
  #playedSamples = 0;

  /** @param {object} listener see Player */
  constructor(listener) {
    this.#listener = listener;
    this.#element.muted = true; // Chromium decodes a remote track only for an element; the audio graph is what is heard
    this.#gain.connect(this.#analyser).connect(this.#context.destination);
    this.#context.onstatechange = () => {
      if (this.#context.state !== "running" && this.#active) listener.interrupted();
    };
  }

  /** Whether an utterance is playing. */
  get active() {
    return this.#active;
  }

  /** Start the audio output; call it from a click or a key, as browsers require. Rejects with an Error for the user. */
  async open() {
    await this.#load();
    await startOutput(this.#context, () => this.#active && this.#listener.notStarted());
  }

  get analyser() {
    return this.#analyser;
  }

  /** The latency of the audio device, as reported by the browser. */
  get outputLatencyMs() {
    return outputLatencyMs(this.#context) || (this.#context.baseLatency || 0) * 1000;
  }

  /** Play this stream instead of the previous one. */
  async play(stream) {
    this.#element.srcObject = stream;
    this.#element.play().catch(() => {}); // a newer stream replaced it
    await this.#load();
    if (this.#element.srcObject !== stream) return;
    this.#source?.disconnect();
    this.#source = this.#context.createMediaStreamSource(stream);
    this.#source.connect(this.#node, 0, 0);
    this.#source.connect(this.#gain);
  }

  /** Messages of the server, before anything else sees them. */
  observe(message) {
    switch (message.type) {
      case "started":
        this.#setGain(1);
        this.#node?.port.postMessage("arm");
        break;
      case "words":
        this.#anchor = { sample: message.words.at(-1).start_sample, atMs: Date.now() };
        break;
      case "paused":
        if (message.applied) this.#limitSamples = message.position_samples;
        break;
      case "resumed":
        if (!message.applied) break;
        this.#limitSamples = Infinity;
        this.#anchor = { sample: message.position_samples, atMs: Date.now() };
        break;
      case "done":
      case "truncated":
        this.#limitSamples = message.samples_sent;
        break;
    }
  }

  begin() {
    this.#active = true;
    this.#anchor = null;
    this.#limitSamples = Infinity;
    this.#transitMs = 0;
    this.#firstMs = null;
    this.#completeAtMs = null;
    this.#playedSamples = 0;
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.#report(), POSITION_INTERVAL_MS);
  }

  push() {
    // The audio comes on the track.
  }

  /** The server has sent all audio of the utterance, or the connection was lost. */
  end() {
    this.#completeAtMs = Date.now();
    if (this.#limitSamples === Infinity) this.#limitSamples = this.#playedSamples;
  }

  pause() {
    // The server stops sending; its answer holds the position.
  }

  resume() {
    if (this.#context.state !== "running") this.#context.resume().catch(() => {});
  }

  /**
   * Silence, now. See Player.
   * @returns {Promise<{playedSamples: number, silent: Promise<number>}>}
   */
  async stop() {
    const wasActive = this.#active;
    this.#active = false;
    clearInterval(this.#timer);
    this.#setGain(0);
    const playedSamples = this.#positionAt(Date.now());
    return { playedSamples, silent: wasActive && this.#node ? this.#silentAt() : Promise.resolve(Date.now()) };
  }

  /** When audio was last loud: {arrivedMs, playedMs}; `arrivedMs` is what would be heard without muting. */
  lastLoud() {
    return new Promise((resolve) => {
      this.#queries.push(resolve);
      this.#node.port.postMessage("lastLoud");
    });
  }

  async #silentAt() {
    await new Promise((resolve) => setTimeout(resolve, MUTED_MS));
    return (await this.lastLoud()).playedMs;
  }

  async #load() {
    this.#loading ??= this.#context.audioWorklet.addModule(new URL("meter-worklet.js", import.meta.url));
    try {
      await this.#loading;
    } catch (error) {
      this.#loading = null;
      throw new Error("This browser cannot play the audio: it needs an AudioWorklet.", { cause: error });
    }
    if (this.#node) return;
    this.#node = new AudioWorkletNode(this.#context, "meter", { numberOfInputs: 2, numberOfOutputs: 1 });
    this.#node.port.onmessage = ({ data }) => {
      if (data.type === "loud") this.#onLoud(data.atMs);
      else this.#queries.shift()?.(data);
    };
    this.#gain.connect(this.#node, 0, 1);
    this.#node.connect(this.#context.destination); // it renders silence; an unconnected node is not processed
  }

  #setGain(value) {
    const { gain } = this.#gain;
    const now = this.#context.currentTime;
    gain.cancelScheduledValues(now);
    gain.setValueAtTime(gain.value, now);
    gain.linearRampToValueAtTime(value, now + RAMP_S); // no click
  }

  #onLoud(atMs) {
    if (!this.#active || this.#firstMs !== null) return;
    this.#firstMs = atMs;
    this.#anchor ??= { sample: 0, atMs };
    const transitMs = atMs - this.#anchor.atMs;
    this.#transitMs = transitMs <= MAX_TRANSIT_MS ? Math.max(0, transitMs) : 0;
    this.#listener.first(atMs);
  }

  #positionAt(nowMs) {
    if (this.#firstMs === null) return 0;
    const { sample, atMs } = this.#anchor;
    const position = sample + ((nowMs - atMs - this.#transitMs) * RATE_HZ) / 1000;
    return Math.max(this.#playedSamples, Math.min(this.#limitSamples, Math.round(position)));
  }

  #report() {
    const nowMs = Date.now();
    const position = this.#positionAt(nowMs);
    if (position > this.#playedSamples) {
      this.#playedSamples = position;
      this.#listener.position(position);
    }
    if (this.#completeAtMs === null) return;
    const silentEnd = this.#firstMs === null && nowMs - this.#completeAtMs > SILENT_END_MS;
    if (position < this.#limitSamples && !silentEnd) return;
    this.#active = false;
    clearInterval(this.#timer);
    this.#listener.ended(Math.min(this.#limitSamples, Math.max(position, silentEnd ? this.#limitSamples : 0)));
  }
}
