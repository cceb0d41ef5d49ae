/**
 * The microphone: asks for it, listens while it is on, and says when the user begins to speak.
 *
 * What it hears stays in the browser's audio thread (ear-worklet.js) and is neither kept nor sent. The browser's echo
 * cancellation takes the page's own voice out. It must not know what an interruption does.
 */

const REASONS = {
  NotAllowedError: "The browser does not allow the microphone: permit it for this page and switch it on again.",
  NotFoundError: "There is no microphone.",
  NotReadableError: "The microphone is used by something else.",
};

export class Ear {
  #listener;
  #session = 0; // switching off while the browser still asks makes the answer too late
  #context = null;
  #stream = null;

  /** @param {{speech(atMs: number): void, level(aboveDb: number): void, lost(text: string): void}} listener */
  constructor(listener) {
    this.#listener = listener;
  }

  /** Switch on; call it from a click. Rejects with an Error that says in plain words why it cannot be. */
  async open() {
    this.close();
    const session = this.#session;
    // Only secure pages (https, or this machine itself) are given a microphone at all.
    if (!navigator.mediaDevices) throw new Error("The microphone needs a secure page: https, or localhost.");
    let stream;
    try {
      const audio = { echoCancellation: true, noiseSuppression: true, autoGainControl: false };
      stream = await navigator.mediaDevices.getUserMedia({ audio });
    } catch (error) {
      throw new Error(REASONS[error.name] ?? "The microphone cannot be used.");
    }
    if (session !== this.#session) {
      release(stream);
      return;
    }
    this.#stream = stream;
    this.#context = new AudioContext(); // at the microphone's own rate, which need not be the player's
    const context = this.#context;
    try {
      await context.audioWorklet.addModule(new URL("ear-worklet.js", import.meta.url));
    } catch {
      if (session !== this.#session) return;
      this.close();
      throw new Error("This browser cannot listen: it needs an AudioWorklet.");
    }
    if (session !== this.#session) return;
    const node = new AudioWorkletNode(context, "ear", { channelCount: 1, channelCountMode: "explicit" });
    node.port.onmessage = ({ data }) => this.#heard(data);
    context.createMediaStreamSource(stream).connect(node).connect(context.destination); // it renders silence
    stream.getAudioTracks()[0].onended = () => {
      this.close();
      this.#listener.lost("The microphone was taken away.");
    };
    if (context.state !== "running") await context.resume();
  }

  /** Switch off. */
  close() {
    this.#session += 1;
    if (this.#stream) release(this.#stream);
    this.#context?.close();
    this.#stream = this.#context = null;
  }

  #heard(message) {
    if (message.type === "begin") this.#listener.speech(message.atMs);
    else if (message.type === "level") this.#listener.level(message.db - message.floorDb);
  }
}

function release(stream) {
  for (const track of stream.getTracks()) {
    track.onended = null;
    track.stop();
  }
}
