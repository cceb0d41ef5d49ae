/**
 * The player on the audio thread: buffers and plays the audio of one utterance at a time, and reports what was rendered.
 *
 * It owns the playback buffer: a stop empties it as soon as the message arrives. Audio that starts or stops in the middle
 * is faded over 5 ms, without a click. Every sample pushed is rendered once or dropped by a stop; the number of rendered
 * samples is the playback position. It knows neither the network nor words.
 *
 * In:  begin {utterance}, push {pcm: ArrayBuffer of s16le}, end, pause, resume, stop {utterance}
 * Out: first {utterance, atMs}, position {utterance, playedSamples}, underrun {utterance},
 *      ended {utterance, playedSamples}, cut {utterance, playedSamples} immediately after a stop, then
 *      silent {utterance, atMs} when its last sample was rendered.
 * Times are wall-clock milliseconds (Date.now), the only clock that this thread shares with the page.
 */
import { RingBuffer } from "./ring-buffer.js";

const FADE_SAMPLES = Math.round(sampleRate * 0.005);
const STEP = 1 / FADE_SAMPLES;
/** Audio buffered before playback starts or resumes after an underrun; it absorbs the jitter of a busy machine. */
const PREBUFFER_SAMPLES = Math.round(sampleRate * 0.06);
const REPORT_SAMPLES = Math.round(sampleRate * 0.02);
const EMPTY = new Float32Array(0);

class PlayerProcessor extends AudioWorkletProcessor {
  #buffer = new RingBuffer(4 * sampleRate);
  #utterance = 0; // 0: none
  #playedSamples = 0;
  #reportedSamples = 0;
  #flowing = false; // enough audio is buffered to play
  #ended = false; // all of its audio is here
  #paused = false;
  #gain = 0; // changes by STEP per sample; at 0 nothing is taken from the buffer
  #fadeOut = EMPTY; // the end of a stopped utterance
  #fadeOutUtterance = 0;
  #fadeOutPosition = 0;

  constructor() {
    super();
    this.port.onmessage = ({ data }) => this.#handle(data);
  }

  process(_inputs, [[out]]) {
    for (let i = 0; i < out.length; i += 1) out[i] = this.#next() + this.#nextFadeOut();
    this.#report();
    this.#endIfPlayed();
    return true;
  }

  #handle(message) {
    switch (message.type) {
      case "begin":
        this.#begin(message.utterance);
        break;
      case "push":
        if (this.#utterance && !this.#ended) this.#buffer.push(new Int16Array(message.pcm));
        break;
      case "end":
        this.#ended = true;
        this.#endIfPlayed();
        break;
      case "pause":
        this.#paused = true;
        break;
      case "resume":
        this.#paused = false;
        break;
      case "stop":
        if (message.utterance === this.#utterance) this.#stop();
        break;
    }
  }

  #begin(utterance) {
    this.#buffer.clear();
    this.#utterance = utterance;
    this.#playedSamples = 0;
    this.#reportedSamples = 0;
    this.#flowing = false;
    this.#ended = false;
    this.#paused = false;
    this.#gain = 0;
  }

  #next() {
    if (!this.#utterance) return 0;
    this.#updateFlow();
    const playing = this.#flowing && !this.#paused;
    if (this.#playedSamples === 0) {
      this.#gain = playing ? 1 : 0; // speech has its own onset: no fade-in
    } else {
      this.#gain = playing ? Math.min(1, this.#gain + STEP) : Math.max(0, this.#gain - STEP);
      if (this.#gain < STEP / 2) this.#gain = 0; // rounding error
    }
    if (this.#gain === 0 || !this.#buffer.length) return 0;
    if (this.#playedSamples === 0) this.port.postMessage({ type: "first", utterance: this.#utterance, atMs: Date.now() });
    this.#playedSamples += 1;
    return (this.#buffer.shift() / 32768) * this.#gain;
  }

  /** Play, wait for more audio, or, just before an underrun, fade out over the last buffered samples. */
  #updateFlow() {
    const samples = this.#buffer.length;
    if (this.#ended) {
      this.#flowing = true;
    } else if (!this.#flowing) {
      this.#flowing = samples >= PREBUFFER_SAMPLES;
    } else if (!this.#paused && samples <= FADE_SAMPLES) {
      this.#flowing = false;
      this.port.postMessage({ type: "underrun", utterance: this.#utterance });
    }
  }

  #stop() {
    const fade = [];
    for (let gain = this.#gain; gain > STEP / 2 && this.#buffer.length; gain -= STEP) {
      fade.push((this.#buffer.shift() / 32768) * gain);
    }
    this.#playedSamples += fade.length;
    this.#buffer.clear();
    this.port.postMessage({ type: "cut", utterance: this.#utterance, playedSamples: this.#playedSamples });
    if (fade.length) {
      this.#fadeOut = Float32Array.from(fade);
      this.#fadeOutUtterance = this.#utterance;
      this.#fadeOutPosition = 0;
    } else {
      this.port.postMessage({ type: "silent", utterance: this.#utterance, atMs: Date.now() });
    }
    this.#utterance = 0;
  }

  #nextFadeOut() {
    if (this.#fadeOutPosition === this.#fadeOut.length) return 0;
    const sample = this.#fadeOut[this.#fadeOutPosition];
    this.#fadeOutPosition += 1;
    if (this.#fadeOutPosition === this.#fadeOut.length) {
      this.port.postMessage({ type: "silent", utterance: this.#fadeOutUtterance, atMs: Date.now() });
    }
    return sample;
  }

  /** Every 20 ms, and once more when playback rests. */
  #report() {
    const newSamples = this.#playedSamples - this.#reportedSamples;
    if (!this.#utterance || !(newSamples >= REPORT_SAMPLES || (newSamples && this.#gain === 0))) return;
    this.#reportedSamples = this.#playedSamples;
    this.port.postMessage({ type: "position", utterance: this.#utterance, playedSamples: this.#playedSamples });
  }

  #endIfPlayed() {
    if (!this.#utterance || !this.#ended || this.#buffer.length) return;
    this.port.postMessage({ type: "ended", utterance: this.#utterance, playedSamples: this.#playedSamples });
    this.#utterance = 0;
  }
}

registerProcessor("player", PlayerProcessor);
