/**
 * Listens to what the page plays, as it leaves the page: when it becomes loud, and when it was loud last.
 *
 * All times are those of the audio clock, in seconds (``now``). What the device adds after it is the same for all sound.
 */

export class Gauge {
  #context = new AudioContext({ latencyHint: "interactive" });
  #node = null;
  #asked = [];
  #onLoud;

  /** @param {(atS: number) => void} onLoud called when sound begins after silence */
  constructor(onLoud) {
    this.#onLoud = onLoud;
  }

  get now() {
    return this.#context.currentTime;
  }

  /** What the device adds to every time, in ms, as far as the browser knows. */
  get deviceMs() {
    return (this.#context.outputLatency || this.#context.baseLatency) * 1000;
  }

  async listen(stream) {
    await this.#context.audioWorklet.addModule(new URL("gauge-worklet.js", import.meta.url));
    this.#node = new AudioWorkletNode(this.#context, "gauge", { numberOfOutputs: 1 });
    this.#node.port.onmessage = ({ data }) => {
      if (data.type === "loud") this.#onLoud(data.atS);
      else this.#asked.shift()?.(data.atS);
    };
    this.#context.createMediaStreamSource(stream).connect(this.#node).connect(this.#context.destination); // silence
    await this.#context.resume();
  }

  /** When the last loud sound ended. */
  lastLoud() {
    return new Promise((resolve) => {
      this.#asked.push(resolve);
      this.#node.port.postMessage("lastLoud");
    });
  }

  close() {
    this.#context.close();
  }
}
