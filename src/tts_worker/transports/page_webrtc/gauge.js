/**
 * Plays the worker's sound, and listens to it as it arrives and as it leaves the page: when it becomes loud, and when it
 * was loud last.
 *
 * Sound that a stop makes old waits in the browser's jitter buffer, where nobody can take it back: until the next begins it
 * is muted. All times are those of the audio clock, in seconds (``now``). What the device adds is the same for all sound.
 */

const RAMP_S = 0.005;

export class Gauge {
  #context = new AudioContext({ latencyHint: "interactive" });
  #node = null;
  #volume = this.#context.createGain();
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
    this.#node = new AudioWorkletNode(this.#context, "gauge", { numberOfInputs: 2, numberOfOutputs: 1 });
    this.#node.port.onmessage = ({ data }) => {
      if (data.type === "loud") this.#onLoud(data.atS);
      else this.#asked.shift()?.(data);
    };
    const source = this.#context.createMediaStreamSource(stream);
    source.connect(this.#node, 0, 0);
    source.connect(this.#volume).connect(this.#node, 0, 1);
    this.#volume.connect(this.#context.destination);
    this.#node.connect(this.#context.destination); // silence: what is connected to nothing is not asked
    await this.#context.resume();
  }

  mute(muted) {
    const volume = this.#volume.gain;
    volume.cancelScheduledValues(this.now);
    volume.setValueAtTime(volume.value, this.now);
    volume.linearRampToValueAtTime(muted ? 0 : 1, this.now + RAMP_S); // no click
  }

  /** When the last loud sound ended: {arrivedS, heardS}. */
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
