/**
 * Voice, style, instruction, speed, seed and flush delay: the available choices and the current ones.
 *
 * The voices, their styles and speed ranges come from the server; a choice survives a new connection as long as the
 * voice does. A field is shown only where the chosen voice supports it.
 */
import { deleteVoice, fetchVoices } from "./api.js";
import { CloneForm } from "./clone-form.js";
import { languageName, languagesOf } from "./languages.js";
import { VoiceCards } from "./voice-cards.js";

const ALIGNMENT = {
  measured: "This voice measures its word timestamps.",
  estimated: "This voice estimates its word timestamps.",
  none: "This voice has no word timestamps.",
};
const NEUTRAL = "neutral";

const byId = (id) => document.getElementById(id);

export class VoiceSettings {
  #cards;
  #clips;
  #wanted = null; // of a link that was opened, until the voices are known
  #style = byId("style");
  #instruct = byId("instruct");
  #speed = byId("speed");
  #seed = byId("seed");
  #flushAfter = byId("flush-after");
  #changed;
  #problem;
  #cloneForm = new CloneForm({
    added: (voice) => this.#addVoice(voice),
    listen: (voice) => this.#cards.listen(voice),
  });

  /**
   * @param {{changed(): void, problem(text: string): void, beforePreview(): void}} listener
   * @param {import("./clips.js").Clips} clips
   */
  constructor(listener, clips) {
    this.#changed = listener.changed;
    this.#problem = listener.problem;
    this.#clips = clips;
    this.#cards = new VoiceCards({ ...listener, changed: () => this.#showVoice() }, clips);
    for (const field of [this.#style, this.#instruct, this.#speed, this.#seed, this.#flushAfter]) {
      field.addEventListener("input", () => this.#update());
    }
    byId("delete-voice").addEventListener("click", ({ target }) => this.#deleteVoice(target));
    byId("shuffle").addEventListener("click", () => {
      this.#seed.value = Math.floor(Math.random() * 10000);
      this.#changed();
    });
  }

  /** The fields of a `start` message. Without a list of voices, the server's default voice. */
  get values() {
    return {
      voice: this.#voiceName,
      speed: this.#speed.valueAsNumber,
      seed: Math.min(Number.MAX_SAFE_INTEGER, Math.max(0, Math.trunc(this.#seed.valueAsNumber || 0))),
      ...this.#instruction,
      ...this.#flushing,
    };
  }

  /** The chosen voice as the server described it, or null. */
  get voice() {
    return this.#cards.chosen;
  }

  /** All voices that can be chosen. */
  get voices() {
    return this.#cards.voices;
  }

  /** Restore `values` of an earlier utterance or of a link, as far as the server offers them. */
  restore(values) {
    const { voice, speed = 1, seed = 0, instruct = "", flush_after_ms: flushAfterMs = "" } = values;
    this.#wanted = this.voices.length ? null : values;
    const [name, style] = (voice ?? "").split("@");
    this.#cards.choose(name);
    if (style && [...this.#style.options].some(({ value }) => value === style)) this.#style.value = style;
    this.#instruct.value = instruct;
    this.#speed.value = speed;
    this.#seed.value = seed;
    this.#flushAfter.value = flushAfterMs;
    this.#update();
  }

  /** Fetch the list of voices. */
  async load() {
    const { voices, canAdd } = await fetchVoices();
    if (!voices) return; // the connection was lost meanwhile; the next one loads them
    this.#cards.show(voices);
    this.#cloneForm.show(canAdd);
    if (this.#wanted) this.restore(this.#wanted);
  }

  stopPreview() {
    this.#cards.stopPreview();
  }

  async #addVoice(voice) {
    this.#clips.forget(voice.id);
    await this.load();
    this.#cards.choose(voice.id);
  }

  /** The first click asks, the second one deletes. */
  async #deleteVoice(button) {
    const { id } = this.voice;
    if (button.dataset.voice !== id) {
      button.dataset.voice = id;
      button.textContent = `Really delete ${id}?`;
      return;
    }
    try {
      await deleteVoice(id);
      this.#clips.forget(id);
      await this.load();
    } catch (error) {
      this.#problem(error.message);
    }
  }

  get #voiceName() {
    const id = this.voice?.id ?? null;
    const style = byId("style-field").hidden ? "" : this.#style.value;
    return style && style !== NEUTRAL ? `${id}@${style}` : id;
  }

  get #instruction() {
    const instruct = byId("instruct-field").hidden ? "" : this.#instruct.value.trim();
    return instruct ? { instruct } : {};
  }

  /** Empty for the server's default. */
  get #flushing() {
    const afterMs = this.#flushAfter.valueAsNumber;
    return Number.isNaN(afterMs) ? {} : { flush_after_ms: Math.min(60000, Math.max(0, afterMs)) };
  }

  #showVoice() {
    const { voice } = this;
    if (!voice) return;
    [this.#speed.min, this.#speed.max] = voice.speed_range;
    const names = languagesOf(voice).map(languageName);
    const languages = names.length > 1 ? `Languages: ${names.join(", ")}.` : "";
    const license = voice.license ? `License: ${voice.license.replace(/\.?$/, ".")}` : "";
    byId("voice-details").textContent = [languages, license].filter(Boolean).join(" ");
    byId("delete-voice").hidden = !voice.stored;
    if (byId("delete-voice").dataset.voice !== voice.id) byId("delete-voice").textContent = "Delete this voice";
    byId("alignment").textContent = ALIGNMENT[voice.alignment];
    byId("instruct-field").hidden = !(voice.capabilities ?? []).includes("instruct");
    this.#showStyles(voice.styles ?? []);
    this.#update();
  }

  #showStyles(styles) {
    const chosen = this.#style.value;
    byId("style-field").hidden = styles.length < 2;
    this.#style.replaceChildren(...styles.map((style) => new Option(style, style)));
    this.#style.value = styles.includes(chosen) ? chosen : styles.includes(NEUTRAL) ? NEUTRAL : (styles[0] ?? "");
  }

  /** Show what follows from the fields, and tell the page. */
  #update() {
    byId("speed-value").textContent = `${this.#speed.valueAsNumber.toFixed(2)}×`;
    this.#changed();
  }
}
