/**
 * Notes when sound was last loud, in the audio thread, where a busy page cannot delay it. Passes nothing on.
 *
 * Its inputs are the sound as it arrives, and as it is heard.
 */

const LOUD = 0.01;

class Gauge extends AudioWorkletProcessor {
  #lastLoud = [-1, -1];
  #wasLoud = false;

  constructor() {
    super();
    this.port.onmessage = () => {
      const [arrivedS, heardS] = this.#lastLoud;
      this.port.postMessage({ type: "lastLoud", arrivedS, heardS });
    };
  }

  process(inputs) {
    inputs.forEach(([samples = []], i) => {
      if (samples.some((sample) => Math.abs(sample) > LOUD)) this.#lastLoud[i] = currentTime + samples.length / sampleRate;
    });
    const heardS = this.#lastLoud[1];
    if (heardS > currentTime) {
      if (!this.#wasLoud) this.port.postMessage({ type: "loud", atS: currentTime });
      this.#wasLoud = true;
    } else if (currentTime - heardS > 0.2) {
      this.#wasLoud = false;
    }
    return true;
  }
}

registerProcessor("gauge", Gauge);
