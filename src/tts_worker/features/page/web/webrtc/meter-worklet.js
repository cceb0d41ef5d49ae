/**
 * A level meter on the audio thread, where a busy page cannot delay it: when audio became loud, and when it was loud last.
 *
 * Inputs: 0 is the track as it arrives, 1 is the track as it is played.
 * In:  arm (report the next loud audio, also without silence before it), lastLoud
 * Out: loud {atMs}, lastLoud {arrivedMs, playedMs}
 * Times are wall-clock milliseconds (Date.now); 0 means never.
 */

const LOUD = 0.01;
const SILENCE_MS = 200;

class MeterProcessor extends AudioWorkletProcessor {
  #lastLoudMs = [0, 0];
  #wasLoud = false;

  constructor() {
    super();
    this.port.onmessage = ({ data }) => {
      if (data === "arm") {
        this.#wasLoud = false;
        return;
      }
      const [arrivedMs, playedMs] = this.#lastLoudMs;
      this.port.postMessage({ type: "lastLoud", arrivedMs, playedMs });
    };
  }

  process(inputs) {
    const nowMs = Date.now();
    inputs.forEach(([samples = []], i) => {
      const last = samples.findLastIndex((sample) => Math.abs(sample) > LOUD);
      if (last >= 0) this.#lastLoudMs[i] = nowMs + ((last + 1) / sampleRate) * 1000;
    });
    if (this.#lastLoudMs[1] > nowMs) {
      if (!this.#wasLoud) this.port.postMessage({ type: "loud", atMs: nowMs });
      this.#wasLoud = true;
    } else if (nowMs - this.#lastLoudMs[1] > SILENCE_MS) {
      this.#wasLoud = false;
    }
    return true;
  }
}

registerProcessor("meter", MeterProcessor);
