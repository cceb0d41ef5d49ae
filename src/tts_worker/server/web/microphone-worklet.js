/**
 * The microphone on the audio thread: splits the input into frames, measures their energy, and reports speech.
 *
 * No audio leaves this file, only numbers. Output: level {db, floorDb} every 100 ms, begin {atMs}, end.
 */
import { FRAME_S, VoiceActivityDetector } from "./vad.js";

const FRAME_SAMPLES = Math.round(sampleRate * FRAME_S);
const LEVEL_FRAMES = 10;
const MIN_ENERGY = 1e-10; // -100 dB

class MicrophoneProcessor extends AudioWorkletProcessor {
  #detector = new VoiceActivityDetector();
  #energy = 0;
  #samples = 0;
  #frames = 0;
  #previous = 0;
  #peakDb = -100;

  process([[samples]]) {
    for (const sample of samples ?? []) this.#addSample(sample);
    return true;
  }

  #addSample(sample) {
    // High-pass: rumble and hum are loud at low frequencies, where there is no speech.
    const emphasized = sample - 0.95 * this.#previous;
    this.#previous = sample;
    this.#energy += emphasized * emphasized;
    this.#samples += 1;
    if (this.#samples === FRAME_SAMPLES) this.#endFrame();
  }

  #endFrame() {
    const db = 10 * Math.log10(MIN_ENERGY + this.#energy / FRAME_SAMPLES);
    this.#energy = 0;
    this.#samples = 0;
    const change = this.#detector.process(db);
    if (change === "begin") {
      this.port.postMessage({ type: "begin", atMs: Date.now() - 1000 * this.#detector.detectionDelayS });
    } else if (change === "end") {
      this.port.postMessage({ type: "end" });
    }
    this.#peakDb = Math.max(this.#peakDb, db);
    this.#frames += 1;
    if (this.#frames % LEVEL_FRAMES === 0) {
      this.port.postMessage({ type: "level", db: this.#peakDb, floorDb: this.#detector.floorDb });
      this.#peakDb = -100;
    }
  }
}

registerProcessor("microphone", MicrophoneProcessor);
