/**
 * The microphone: asks for it, listens while it is on, and reports when the user begins and ends to speak.
 *
 * The input stays on the browser's audio thread (microphone-worklet.js) and is neither stored nor sent, unless a listener
 * takes the audio of the user's speech. The browser's echo cancellation removes the page's own playback. What an
 * interruption does is decided elsewhere.
 */

const REASONS = {
  NotAllowedError: "The browser does not allow the microphone: permit it for this page and switch it on again.",
  NotFoundError: "There is no microphone.",
  NotReadableError: "The microphone is used by something else.",
};

export class Microphone {
  #listener;
  #generation = 0; // if it is switched off while the browser still asks, the answer is ignored
  #context = null;
  #stream = null;

  /**
   * @param {{speech(atMs: number): void, silence?(): void, audio?(pcm: ArrayBuffer): void, level(aboveDb: number): void,
   *   lost(text: string): void}} listener `audio` takes the user's speech as s16le mono at `sampleRate`
   */
  constructor(listener) {
    this.#listener = listener;
  }

  /** The rate of the audio, in Hz; 0 while it is off. */
  get sampleRate() {
    return this.#context?.sampleRate ?? 0;
  }

  /** Switch on; call it from a click. Rejects with an Error whose message says why it is not possible. */
  async open() {
    this.close();
    const generation = this.#generation;
    // Only secure pages (https or localhost) are given a microphone.
    if (!navigator.mediaDevices) throw new Error("The microphone needs a secure page: https, or localhost.");
    let stream;
    try {
      const audio = { echoCancellation: true, noiseSuppression: true, autoGainControl: false };
      stream = await navigator.mediaDevices.getUserMedia({ audio });
    } catch (error) {
      throw new Error(REASONS[error.name] ?? "The microphone cannot be used.");
    }
    if (generation !== this.#generation) {
      release(stream);
      return;
    }
    this.#stream = stream;
    this.#context = new AudioContext(); // at the microphone's native rate, which may differ from the player's
    const context = this.#context;
    try {
      await context.audioWorklet.addModule(new URL("microphone-worklet.js", import.meta.url));
    } catch {
      if (generation !== this.#generation) return;
      this.close();
      throw new Error("This browser cannot listen: it needs an AudioWorklet.");
    }
    if (generation !== this.#generation) return;
    const node = new AudioWorkletNode(context, "microphone", {
      channelCount: 1,
      channelCountMode: "explicit",
      processorOptions: { sendsAudio: Boolean(this.#listener.audio) },
    });
    node.port.onmessage = ({ data }) => this.#onMessage(data);
    context.createMediaStreamSource(stream).connect(node).connect(context.destination); // it renders silence
    stream.getAudioTracks()[0].onended = () => {
      this.close();
      this.#listener.lost("The microphone was disconnected.");
    };
    if (context.state !== "running") await context.resume();
  }

  /** Switch off. */
  close() {
    this.#generation += 1;
    if (this.#stream) release(this.#stream);
    this.#context?.close();
    this.#stream = this.#context = null;
  }

  #onMessage(message) {
    if (message.type === "begin") this.#listener.speech(message.atMs);
    else if (message.type === "end") this.#listener.silence?.();
    else if (message.type === "audio") this.#listener.audio(message.pcm);
    else if (message.type === "level") this.#listener.level(message.db - message.floorDb);
  }
}

function release(stream) {
  for (const track of stream.getTracks()) {
    track.onended = null;
    track.stop();
  }
}
