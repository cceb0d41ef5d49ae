/**
 * Short speech as files: synthesized over HTTP, which yields to calls, and kept, so that hearing it again costs nothing.
 *
 * Offers: Clips, shared by the samples of voices, the waveform at rest and the comparison of voices.
 */
import { synthesize } from "./api.js";
import { speechRequest } from "./code-samples.js";
import { samplesOf, withLength } from "./wav.js";

const MAX_CLIPS = 24;

export class Clips {
  #clips = new Map(); // request as JSON -> {url, samples, voice}, the least recently used first

  /**
   * Rejects with an Error for the user, also when `signal` aborts it.
   * @param {string} text @param {object} settings of an utterance @param {AbortSignal} signal
   * @returns {Promise<{url: string, samples: Int16Array}>}
   */
  async get(text, settings, signal) {
    const request = speechRequest(text, settings);
    const key = JSON.stringify(request);
    let clip = this.#clips.get(key);
    if (!clip) {
      const file = await withLength(await synthesize(request, signal));
      clip = { url: URL.createObjectURL(file), samples: await samplesOf(file), voice: settings.voice };
    }
    this.#clips.delete(key);
    this.#clips.set(key, clip);
    if (this.#clips.size > MAX_CLIPS) this.#drop(this.#clips.keys().next().value);
    return clip;
  }

  /** Forget a voice that was deleted or replaced. @param {string} voice */
  forget(voice) {
    for (const [key, clip] of this.#clips) if (clip.voice === voice) this.#drop(key);
  }

  #drop(key) {
    URL.revokeObjectURL(this.#clips.get(key).url);
    this.#clips.delete(key);
  }
}
