/**
 * Plays a short sample of a voice, one at a time.
 */
export class Preview {
  #listener;
  #clips;
  #audio = new Audio();
  #request = null;
  #voice = null;

  /**
   * @param {{playing(voice: string | null): void, failed(text: string): void}} listener `null`: nothing plays now
   * @param {import("./clips.js").Clips} clips
   */
  constructor(listener, clips) {
    this.#listener = listener;
    this.#clips = clips;
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
      const { url } = await this.#clips.get(text, { voice, speed: 1 }, request.signal);
      if (request.signal.aborted) return;
      this.#audio.src = url;
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
}
