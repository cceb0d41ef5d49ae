/**
 * The recorder on the audio thread: posts the microphone's samples as they come. Out: Float32Array, mono.
 */
class RecorderProcessor extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
}

registerProcessor("recorder", RecorderProcessor);
