/**
 * Voice, speed, seed and flush delay: the available choices and the current ones.
 *
 * The voices and their speed ranges come from the server; a choice survives a new connection as long as the voice does.
 */
import { fetchVoices } from "./api.js";

const ALIGNMENT = {
  measured: "This voice measures its word timestamps.",
  estimated: "This voice estimates its word timestamps.",
  none: "This voice has no word timestamps.",
};
/** More languages than this are counted in the list of voices, and named below it. */
const MAX_LISTED_LANGUAGES = 3;

const byId = (id) => document.getElementById(id);
const languageNames = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });

function languagesOf(voice) {
  return voice.languages.filter((language) => language !== "mul");
}

function optionText(voice) {
  const languages = languagesOf(voice);
  if (!languages.length) return voice.name;
  const listed = languages.length > MAX_LISTED_LANGUAGES ? `${languages.length} languages` : languages.join(", ");
  return `${voice.name} (${listed})`;
}

/** The languages by name; a code that the browser does not know, or that is malformed, is shown as it is. */
function nameOf(language) {
  try {
    return languageNames.of(language);
  } catch {
    return language;
  }
}

export class VoiceSettings {
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

  /** The fields of a `start` message. Without a list of voices, the server's default voice. */
  get values() {
    return {
      voice: this.#voice.value || null,
      speed: this.#speed.valueAsNumber,
      seed: Math.min(Number.MAX_SAFE_INTEGER, Math.max(0, Math.trunc(this.#seed.valueAsNumber || 0))),
      ...this.#flushing,
    };
  }

  /** Empty for the server's default. */
  get #flushing() {
    const afterMs = this.#flushAfter.valueAsNumber;
    return Number.isNaN(afterMs) ? {} : { flush_after_ms: Math.min(60000, Math.max(0, afterMs)) };
  }

  /** Fetch the list of voices. */
  async load() {
    const { voices } = await fetchVoices();
    if (!voices) return; // the connection was lost meanwhile; the next one loads them
    const chosen = this.#voice.value;
    this.#voices = voices;
    this.#voice.replaceChildren(
      ...voices.map((voice) => new Option(optionText(voice), voice.id, voice.default, voice.default)),
    );
    if (voices.some((voice) => voice.id === chosen)) this.#voice.value = chosen;
    this.#showVoice();
  }

  #showVoice() {
    const voice = this.#voices.find(({ id }) => id === this.#voice.value);
    if (!voice) return;
    [this.#speed.min, this.#speed.max] = voice.speed_range;
    const languages = languagesOf(voice);
    const names = languages.length > MAX_LISTED_LANGUAGES ? `Languages: ${languages.map(nameOf).join(", ")}.` : "";
    byId("voice-details").textContent = [voice.description, names].filter(Boolean).join(" ");
    byId("alignment").textContent = ALIGNMENT[voice.alignment];
    this.#showSpeed();
  }

  #showSpeed() {
    byId("speed-value").textContent = `${this.#speed.valueAsNumber.toFixed(2)}×`;
  }
}
