/**
 * Records the microphone as a WAV file, without compression and without the browser's processing: a voice is made of it.
 *
 * Offers: Recorder. The recording stays in the page until the user sends it.
 */
import { wavOf } from "./wav.js";

/** The server takes no longer recordings. */
const MAX_S = 30;

export class Recorder {
  #listener;
  #context = null;
  #stream = null;
  #blocks = [];
  #samples = 0;

  /** @param {{progress(seconds: number): void, recorded(file: Blob): void}} listener */
  constructor(listener) {
    this.#listener = listener;
  }

  get recording() {
    return this.#context !== null;
  }

  /** Begin; call it from a click. Rejects with an Error for the user. */
  async start() {
    if (!navigator.mediaDevices) throw new Error("Recording needs a secure page: https, or localhost.");
    const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: false, channelCount: 1 };
    try {
      this.#stream = await navigator.mediaDevices.getUserMedia({ audio });
    } catch (error) {
      throw new Error("The browser gives this page no microphone.", { cause: error });
    }
    this.#context = new AudioContext();
    this.#blocks = [];
    this.#samples = 0;
    await this.#context.audioWorklet.addModule(new URL("recorder-worklet.js", import.meta.url));
    const node = new AudioWorkletNode(this.#context, "recorder", { channelCount: 1, channelCountMode: "explicit" });
    node.port.onmessage = ({ data }) => this.#add(data);
    this.#context.createMediaStreamSource(this.#stream).connect(node).connect(this.#context.destination); // it is silent
    await this.#context.resume();
    this.#listener.progress(0);
  }

  /** End, and hand over what was recorded. */
  stop() {
    if (!this.recording) return;
    const samples = new Float32Array(this.#samples);
    let at = 0;
    for (const block of this.#blocks) {
      samples.set(block, at);
      at += block.length;
    }
    const rateHz = this.#context.sampleRate;
    this.#context.close();
    this.#context = null;
    for (const track of this.#stream.getTracks()) track.stop();
    this.#listener.recorded(wavOf(samples, rateHz));
  }

  #add(block) {
    if (!this.recording) return;
    this.#blocks.push(block);
    this.#samples += block.length;
    const seconds = this.#samples / this.#context.sampleRate;
    this.#listener.progress(seconds);
    if (seconds >= MAX_S) this.stop();
  }
}
