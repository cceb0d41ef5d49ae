/**
 * A first-in-first-out queue of 16-bit samples in a circular buffer.
 *
 * The server paces what it sends, so a few seconds are enough; after a network stall more can arrive at once, and then
 * the buffer grows: no sample is dropped. It knows nothing of audio or time.
 */
export class RingBuffer {
  #samples;
  #head = 0;
  #length = 0;

  /** @param {number} capacitySamples initial capacity, at least 1 */
  constructor(capacitySamples) {
    this.#samples = new Int16Array(capacitySamples);
  }

  get length() {
    return this.#length;
  }

  /** @param {Int16Array} samples */
  push(samples) {
    this.#reserve(this.#length + samples.length);
    const capacity = this.#samples.length;
    const tail = (this.#head + this.#length) % capacity;
    const untilEnd = Math.min(samples.length, capacity - tail);
    this.#samples.set(samples.subarray(0, untilEnd), tail);
    this.#samples.set(samples.subarray(untilEnd), 0);
    this.#length += samples.length;
  }

  /** Remove and return the oldest sample. `length` must be above 0. */
  shift() {
    const sample = this.#samples[this.#head];
    this.#head = (this.#head + 1) % this.#samples.length;
    this.#length -= 1;
    return sample;
  }

  clear() {
    this.#head = 0;
    this.#length = 0;
  }

  #reserve(neededSamples) {
    const capacity = this.#samples.length;
    if (neededSamples <= capacity) return;
    const larger = new Int16Array(Math.max(neededSamples, 2 * capacity));
    const untilEnd = Math.min(this.#length, capacity - this.#head);
    larger.set(this.#samples.subarray(this.#head, this.#head + untilEnd), 0);
    larger.set(this.#samples.subarray(0, this.#length - untilEnd), untilEnd);
    this.#samples = larger;
    this.#head = 0;
  }
}
