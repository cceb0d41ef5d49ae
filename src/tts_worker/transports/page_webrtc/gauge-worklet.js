/** Notes when sound was last loud, in the audio thread, where a busy page cannot delay it. Passes nothing on. */

const LOUD = 0.01;

class Gauge extends AudioWorkletProcessor {
  #lastLoud = -1;
  #wasLoud = false;

  constructor() {
    super();
    this.port.onmessage = () => this.port.postMessage({ type: "lastLoud", atS: this.#lastLoud });
  }

  process([input]) {
    const samples = input[0] ?? [];
    if (samples.some((sample) => Math.abs(sample) > LOUD)) {
      this.#lastLoud = currentTime + samples.length / sampleRate;
      if (!this.#wasLoud) this.port.postMessage({ type: "loud", atS: currentTime });
      this.#wasLoud = true;
    } else if (currentTime - this.#lastLoud > 0.2) {
      this.#wasLoud = false;
    }
    return true;
  }
}

registerProcessor("gauge", Gauge);
