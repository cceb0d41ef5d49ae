/**
 * The player on the audio thread: takes the sound of one turn at a time, plays it, and says what was really rendered.
 *
 * It owns the buffer, so nothing but this file decides what is heard: a stop empties it in the moment it arrives.
 * Whatever begins or ends in the middle of a sound does so over 5 ms, without a click. Every sample that comes in is
 * rendered once or dropped by a stop, and the count of the rendered ones is the position that the page goes by.
 * It knows neither the network nor words.
 *
 * In:  begin {turn}, push {pcm: ArrayBuffer of s16le}, end, pause, resume, stop {turn}
 * Out: first {turn, atMs}, position {turn, playedSamples}, dry {turn}, ended {turn, playedSamples},
 *      cut {turn, playedSamples} at once after a stop, then silent {turn, atMs} when its last sample was rendered.
 * Times are wall-clock milliseconds (Date.now), the one clock that this thread shares with the page.
 */
import { Ring } from "./ring.js";

const FADE_SAMPLES = Math.round(sampleRate * 0.005);
const STEP = 1 / FADE_SAMPLES;
/** Sound to have before playing begins, so that the first hiccup of a busy machine is not heard. */
const CUSHION_SAMPLES = Math.round(sampleRate * 0.06);
const REPORT_SAMPLES = Math.round(sampleRate * 0.02);
const NOTHING = new Float32Array(0);

class PlayerProcessor extends AudioWorkletProcessor {
  #ring = new Ring(4 * sampleRate);
  #turn = 0; // 0: none
  #playedSamples = 0;
  #reportedSamples = 0;
  #flowing = false; // there is enough sound to go on
  #ended = false; // all of its sound is here
  #paused = false;
  #gain = 0; // moves by STEP a sample; at 0 nothing is taken from the ring
  #tail = NOTHING; // the fade of what was stopped
  #tailTurn = 0;
  #tailPosition = 0;

  constructor() {
    super();
    this.port.onmessage = ({ data }) => this.#handle(data);
  }

  process(_inputs, [[out]]) {
    for (let i = 0; i < out.length; i += 1) out[i] = this.#next() + this.#nextOfTail();
    this.#report();
    this.#endIfOver();
    return true;
  }

  #handle(message) {
    switch (message.type) {
      case "begin":
        this.#begin(message.turn);
        break;
      case "push":
        if (this.#turn && !this.#ended) this.#ring.push(new Int16Array(message.pcm));
        break;
      case "end":
        this.#ended = true;
        this.#endIfOver();
        break;
      case "pause":
        this.#paused = true;
        break;
      case "resume":
        this.#paused = false;
        break;
      case "stop":
        if (message.turn === this.#turn) this.#stop();
        break;
    }
  }

  #begin(turn) {
    this.#ring.clear();
    this.#turn = turn;
    this.#playedSamples = 0;
    this.#reportedSamples = 0;
    this.#flowing = false;
    this.#ended = false;
    this.#paused = false;
    this.#gain = 0;
  }

  #next() {
    if (!this.#turn) return 0;
    this.#watchCushion();
    const wanted = this.#flowing && !this.#paused;
    if (this.#playedSamples === 0) {
      this.#gain = wanted ? 1 : 0; // speech has a beginning of its own: no fade there
    } else {
      this.#gain = wanted ? Math.min(1, this.#gain + STEP) : Math.max(0, this.#gain - STEP);
      if (this.#gain < STEP / 2) this.#gain = 0; // what floating point leaves over is no sound
    }
    if (this.#gain === 0 || !this.#ring.length) return 0;
    if (this.#playedSamples === 0) this.port.postMessage({ type: "first", turn: this.#turn, atMs: Date.now() });
    this.#playedSamples += 1;
    return (this.#ring.shift() / 32768) * this.#gain;
  }

  /** Whether to go on, wait for more, or, when it is about to run dry, fade out over the last samples there are. */
  #watchCushion() {
    const samples = this.#ring.length;
    if (this.#ended) {
      this.#flowing = true;
    } else if (!this.#flowing) {
      this.#flowing = samples >= CUSHION_SAMPLES;
    } else if (!this.#paused && samples <= FADE_SAMPLES) {
      this.#flowing = false;
      this.port.postMessage({ type: "dry", turn: this.#turn });
    }
  }

  #stop() {
    const fade = [];
    for (let gain = this.#gain; gain > STEP / 2 && this.#ring.length; gain -= STEP) {
      fade.push((this.#ring.shift() / 32768) * gain);
    }
    this.#playedSamples += fade.length;
    this.#ring.clear();
    this.port.postMessage({ type: "cut", turn: this.#turn, playedSamples: this.#playedSamples });
    if (fade.length) {
      this.#tail = Float32Array.from(fade);
      this.#tailTurn = this.#turn;
      this.#tailPosition = 0;
    } else {
      this.port.postMessage({ type: "silent", turn: this.#turn, atMs: Date.now() });
    }
    this.#turn = 0;
  }

  #nextOfTail() {
    if (this.#tailPosition === this.#tail.length) return 0;
    const sample = this.#tail[this.#tailPosition];
    this.#tailPosition += 1;
    if (this.#tailPosition === this.#tail.length) {
      this.port.postMessage({ type: "silent", turn: this.#tailTurn, atMs: Date.now() });
    }
    return sample;
  }

  /** Every 20 ms, and once more where the sound rests. */
  #report() {
    const newSamples = this.#playedSamples - this.#reportedSamples;
    if (!this.#turn || !(newSamples >= REPORT_SAMPLES || (newSamples && this.#gain === 0))) return;
    this.#reportedSamples = this.#playedSamples;
    this.port.postMessage({ type: "position", turn: this.#turn, playedSamples: this.#playedSamples });
  }

  #endIfOver() {
    if (!this.#turn || !this.#ended || this.#ring.length) return;
    this.port.postMessage({ type: "ended", turn: this.#turn, playedSamples: this.#playedSamples });
    this.#turn = 0;
  }
}

registerProcessor("player", PlayerProcessor);
