/**
 * Voice, speed, seed and flush delay: what can be chosen, and what was.
 *
 * The voices and their ranges are the worker's; a choice survives a new connection as long as the voice does.
 */
import { fetchVoices } from "./api.js";

const ALIGNMENT = {
  measured: "The voice itself measures when each word sounds.",
  estimated: "When each word sounds is estimated.",
  none: "This voice does not know when each word sounds.",
};

const byId = (id) => document.getElementById(id);

export class Settings {
  #voice = byId("voice");
  #speed = byId("speed");
  #seed = byId("seed");
  #flushAfter = byId("flush-after");
  #voices = [];

  constructor() {
    this.#voice.addEventListener("change", () => this.#showVoice());
    this.#speed.addEventListener("input", () => this.#showSpeed());
    byId("shuffle").addEventListener("click", () => {
      this.#seed.value = Math.floor(Math.random() * 10000);
    });
  }

  /** The fields of a `start` message. The worker's default voice until its voices are known. */
  get values() {
    return {
      voice: this.#voice.value || null,
      speed: this.#speed.valueAsNumber,
      seed: Math.min(Number.MAX_SAFE_INTEGER, Math.max(0, Math.trunc(this.#seed.valueAsNumber || 0))),
      ...this.#flushing,
    };
  }

  /** Nothing where the worker's default will do. */
  get #flushing() {
    const afterMs = this.#flushAfter.valueAsNumber;
    return Number.isNaN(afterMs) ? {} : { flush_after_ms: Math.min(60000, Math.max(0, afterMs)) };
  }

  /** Ask the worker for its voices. */
  async load() {
    const { voices } = await fetchVoices();
    if (!voices) return; // the connection was lost meanwhile; they will be asked for again
    const chosen = this.#voice.value;
    this.#voices = voices;
    this.#voice.replaceChildren(
      ...voices.map((voice) => {
        const languages = voice.languages.filter((language) => language !== "mul").join(", ");
        const name = languages ? `${voice.name} (${languages})` : voice.name;
        return new Option(name, voice.id, voice.default, voice.default);
      }),
    );
    if (voices.some((voice) => voice.id === chosen)) this.#voice.value = chosen;
    this.#showVoice();
  }

  #showVoice() {
    const voice = this.#voices.find(({ id }) => id === this.#voice.value);
    if (!voice) return;
    [this.#speed.min, this.#speed.max] = voice.speed_range;
    this.#voice.title = voice.description;
    byId("alignment").textContent = ALIGNMENT[voice.alignment];
    this.#showSpeed();
  }

  #showSpeed() {
    byId("speed-value").textContent = `${this.#speed.valueAsNumber.toFixed(2)}×`;
  }
}
