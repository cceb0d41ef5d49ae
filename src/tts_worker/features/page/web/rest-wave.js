/**
 * The waveform at rest: before anything was heard it shows the page's own text in the chosen voice.
 *
 * Only the page's own texts are synthesized unasked, once for each voice, and never while something is spoken.
 */

/** Choices that follow each other at once, such as arrow keys over the voices, ask for one waveform. */
const SETTLE_MS = 300;

export class RestWave {
  #clips;
  #timeline;
  #tell;
  #request = new AbortController();

  /**
   * @param {import("./clips.js").Clips} clips
   * @param {import("./timeline.js").Timeline} timeline
   * @param {(seconds: number | null) => void} tell how long the speech is that is shown; null: none is
   */
  constructor(clips, timeline, tell) {
    this.#clips = clips;
    this.#timeline = timeline;
    this.#tell = tell;
  }

  /** Nothing is heard or shown of an utterance. @param {string} text empty to show nothing @param {object} settings */
  async show(text, settings) {
    this.cancel();
    this.#timeline.showReady();
    this.#tell(null);
    if (!text || document.hidden || navigator.connection?.saveData) return;
    const { signal } = (this.#request = new AbortController());
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    if (signal.aborted) return;
    let clip;
    try {
      clip = await this.#clips.get(text, settings, signal);
    } catch {
      return; // the server has other work, or does not speak this: Speak tells which
    }
    if (signal.aborted) return;
    this.#timeline.showReady(clip.samples);
    this.#tell(clip.samples.length / 24000);
  }

  /** An utterance takes its place. */
  cancel() {
    this.#request.abort();
  }
}
