/**
 * What is known of the audio of one utterance over time: its envelope, how it arrived, its words, what was heard.
 *
 * Positions are samples at 24 kHz from the start of the utterance. It draws nothing and knows no clock but the caller's.
 * Offers: TimelineModel, for timeline.js and every page that shows speech.
 */

/** The envelope has one peak for so many samples (10 ms). */
export const PEAK_SAMPLES = 240;
/** Audio that arrives within this time of the audio before it is one chunk. */
const SAME_CHUNK_MS = 8;

export class TimelineModel {
  peaks = []; // 0 to 1, one for each PEAK_SAMPLES
  chunks = []; // positions at which audio arrived that had been waited for
  words = []; // {text, startSample}
  receivedSamples = 0;
  heardSamples = 0;
  /** Where a stop cut it off, or null. */
  cutSample = null;
  #lastAudioMs = -Infinity;

  /** Audio arrived. @param {Int16Array} samples @param {number} atMs */
  addAudio(samples, atMs) {
    if (atMs - this.#lastAudioMs > SAME_CHUNK_MS) this.chunks.push(this.receivedSamples);
    this.#lastAudioMs = atMs;
    for (const sample of samples) {
      const level = Math.abs(sample) / 32768;
      this.setPeak(this.receivedSamples, level);
      this.receivedSamples += 1;
    }
  }

  /** The audio at this position is at least this loud; all that is known of audio which arrives on a track. */
  setPeak(sample, level) {
    const index = Math.floor(sample / PEAK_SAMPLES);
    while (this.peaks.length <= index) this.peaks.push(0);
    if (level > this.peaks[index]) this.peaks[index] = level;
  }

  /** @param {{text: string, startSample: number}[]} words */
  addWords(words) {
    this.words.push(...words);
  }

  /** The first `samples` samples were heard. */
  hear(samples) {
    this.heardSamples = samples;
  }

  /** The playout lead in ms: received and not yet heard. Null where audio does not pass through the page. */
  get leadMs() {
    return this.receivedSamples ? Math.max(0, this.receivedSamples - this.heardSamples) / 24 : null;
  }

  /** The end of everything known, in samples. */
  get endSample() {
    return Math.max(this.receivedSamples, this.heardSamples, this.peaks.length * PEAK_SAMPLES);
  }
}
