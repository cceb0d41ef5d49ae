/**
 * The microphone on the audio thread: cuts what it hears into frames, measures their energy, and tells of speech.
 *
 * No sound leaves this file, only numbers. Out: level {db, floorDb} every 100 ms, begin {atMs}, end.
 */
import { FRAME_S, Vad } from "./vad.js";

const FRAME_SAMPLES = Math.round(sampleRate * FRAME_S);
const LEVEL_FRAMES = 10;
const SILENCE = 1e-10; // -100 dB

class EarProcessor extends AudioWorkletProcessor {
  #vad = new Vad();
  #energy = 0;
  #samples = 0;
  #frames = 0;
  #before = 0;
  #loudestDb = -100;

  process([[samples]]) {
    for (const sample of samples ?? []) this.#take(sample);
    return true;
  }

  #take(sample) {
    // Less weight for the low end: rumble and hum are loud there, and no one speaks there.
    const bright = sample - 0.95 * this.#before;
    this.#before = sample;
    this.#energy += bright * bright;
    this.#samples += 1;
    if (this.#samples === FRAME_SAMPLES) this.#endFrame();
  }

  #endFrame() {
    const db = 10 * Math.log10(SILENCE + this.#energy / FRAME_SAMPLES);
    this.#energy = 0;
    this.#samples = 0;
    const change = this.#vad.take(db);
    if (change === "begin") {
      this.port.postMessage({ type: "begin", atMs: Date.now() - 1000 * this.#vad.noticedAfterS });
    } else if (change === "end") {
      this.port.postMessage({ type: "end" });
    }
    this.#loudestDb = Math.max(this.#loudestDb, db);
    this.#frames += 1;
    if (this.#frames % LEVEL_FRAMES === 0) {
      this.port.postMessage({ type: "level", db: this.#loudestDb, floorDb: this.#vad.floorDb });
      this.#loudestDb = -100;
    }
  }
}

registerProcessor("ear", EarProcessor);
