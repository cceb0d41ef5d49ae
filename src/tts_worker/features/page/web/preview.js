/**
 * Plays a short sample of a voice, one at a time. It is fetched over HTTP and kept, so a second click costs nothing.
 */
import { synthesize } from "./api.js";

export class Preview {
  #listener;
  #clips = new Map(); // voice -> object URL
  #audio = new Audio();
  #request = null;
  #voice = null;

  /** @param {{playing(voice: string | null): void, failed(text: string): void}} listener `null`: nothing plays now */
  constructor(listener) {
    this.#listener = listener;
    this.#audio.onended = () => this.stop();
  }

  /** Play the sample of `voice`, or stop it if it is playing. @param {string} voice @param {string} text */
  async toggle(voice, text) {
    const wasPlaying = this.#voice === voice;
    this.stop();
    if (wasPlaying) return;
    this.#voice = voice;
    this.#listener.playing(voice);
    const request = (this.#request = new AbortController());
    try {
      if (!this.#clips.has(voice)) {
        const clip = await synthesize({ voice, input: text }, request.signal);
        this.#clips.set(voice, URL.createObjectURL(clip));
      }
      if (request.signal.aborted) return;
      this.#audio.src = this.#clips.get(voice);
      await this.#audio.play();
    } catch (error) {
      if (request.signal.aborted) return;
      this.stop();
      this.#listener.failed(error.message);
    }
  }

  stop() {
    if (this.#voice === null) return;
    this.#voice = null;
    this.#request.abort();
    this.#audio.pause();
    this.#listener.playing(null);
  }

  /** Forget the sample of a voice that was deleted or replaced. @param {string} voice */
  forget(voice) {
    URL.revokeObjectURL(this.#clips.get(voice));
    this.#clips.delete(voice);
  }
}
