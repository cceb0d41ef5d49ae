/**
 * The microphone on the audio thread: splits the input into frames, measures their energy, and reports speech.
 *
 * Output: level {db, floorDb} every 100 ms, begin {atMs}, end; and only on request audio {pcm}, from shortly before the
 * speech was detected until its end. Otherwise no audio leaves this file, only numbers.
 */
import { FRAME_S, VoiceActivityDetector } from "./vad.js";

const FRAME_SAMPLES = Math.round(sampleRate * FRAME_S);
const LEVEL_FRAMES = 10;
const MIN_ENERGY = 1e-10; // -100 dB
/** Audio from before the detection: the first phoneme of a word is often faint. */
const EARLIER_FRAMES = 30;

class MicrophoneProcessor extends AudioWorkletProcessor {
  #detector = new VoiceActivityDetector();
  #energy = 0;
  #samples = 0;
  #frames = 0;
  #previous = 0;
  #peakDb = -100;
  #frame = new Int16Array(FRAME_SAMPLES);
  #unsent = []; // frames; without speech, the latest ones
  #sendsAudio;

  constructor({ processorOptions }) {
    super();
    this.#sendsAudio = processorOptions.sendsAudio;
  }

  process([[samples]]) {
    for (const sample of samples ?? []) this.#addSample(sample);
    return true;
  }

  #addSample(sample) {
    // High-pass: rumble and hum are loud at low frequencies, where there is no speech.
    const emphasized = sample - 0.95 * this.#previous;
    this.#previous = sample;
    this.#energy += emphasized * emphasized;
    this.#frame[this.#samples] = Math.max(-1, Math.min(1, sample)) * 32767;
    this.#samples += 1;
    if (this.#samples === FRAME_SAMPLES) this.#endFrame();
  }

  #endFrame() {
    const db = 10 * Math.log10(MIN_ENERGY + this.#energy / FRAME_SAMPLES);
    this.#energy = 0;
    this.#samples = 0;
    const change = this.#detector.process(db);
    if (this.#sendsAudio) {
      this.#unsent.push(this.#frame);
      this.#frame = new Int16Array(FRAME_SAMPLES);
      if (!this.#detector.speaking && change !== "end") this.#unsent = this.#unsent.slice(-EARLIER_FRAMES);
    }
    if (change === "begin") {
      this.port.postMessage({ type: "begin", atMs: Date.now() - 1000 * this.#detector.detectionDelayS });
    } else if (change === "end") {
      this.#sendAudio();
      this.port.postMessage({ type: "end" });
    }
    this.#peakDb = Math.max(this.#peakDb, db);
    this.#frames += 1;
    if (this.#frames % LEVEL_FRAMES === 0) {
      if (this.#detector.speaking) this.#sendAudio();
      this.port.postMessage({ type: "level", db: this.#peakDb, floorDb: this.#detector.floorDb });
      this.#peakDb = -100;
    }
  }

  #sendAudio() {
    if (!this.#unsent.length) return;
    const samples = new Int16Array(this.#unsent.length * FRAME_SAMPLES);
    this.#unsent.forEach((frame, index) => samples.set(frame, index * FRAME_SAMPLES));
    this.#unsent = [];
    this.port.postMessage({ type: "audio", pcm: samples.buffer }, [samples.buffer]);
  }
}

registerProcessor("microphone", MicrophoneProcessor);
