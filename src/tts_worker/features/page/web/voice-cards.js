/**
 * The voices as cards: a radio button each, so that arrow keys choose, with its languages, abilities and a sample.
 *
 * The tab key stops at the chosen voice and at its sample only, however many voices there are.
 *
 * Text of the server is inserted as text, never as markup.
 */
import { element } from "./elements.js";
import { greetingFor, languageName, languagesOf } from "./languages.js";
import { Preview } from "./preview.js";

/** More languages than this are counted on a card, and named below the list. */
const MAX_LISTED_LANGUAGES = 3;
/** With more voices than this there is a field that filters them. */
const MAX_UNFILTERED = 8;

/** Hues of neighbors are far from each other, however many there are. */
const FIRST_HUE = 265;
const GOLDEN_ANGLE = 137.5;

const byId = (id) => document.getElementById(id);

function languagesText(voice) {
  const languages = languagesOf(voice);
  if (languages.length > MAX_LISTED_LANGUAGES) return `${languages.length} languages`;
  return languages.map(languageName).join(", ");
}

function badgesOf(voice) {
  const styles = (voice.styles ?? []).length;
  const isPackaged = !voice.stored || voice.stored.source === "pack";
  return [
    voice.gender && !voice.description?.includes(voice.gender) ? voice.gender : "",
    isPackaged ? "" : "added",
    styles > 1 ? `${styles} styles` : "",
    (voice.capabilities ?? []).includes("instruct") ? "instructions" : "",
  ].filter(Boolean);
}

export class VoiceCards {
  #list = byId("voice-list");
  #filter = byId("voice-filter");
  #voices = [];
  #changed;
  #beforePreview;
  #preview;

  /**
   * @param {{changed(): void, problem(text: string): void, beforePreview(): void}} listener
   * @param {import("./clips.js").Clips} clips
   */
  constructor(listener, clips) {
    this.#changed = () => {
      this.#showTabStops();
      listener.changed();
    };
    this.#beforePreview = listener.beforePreview;
    this.#preview = new Preview({ playing: (voice) => this.#showPlaying(voice), failed: listener.problem }, clips);
    this.#list.addEventListener("change", () => this.#changed());
    this.#list.addEventListener("click", ({ target }) => {
      const button = target.closest(".preview");
      if (button) this.listen(button.value);
    });
    this.#filter.addEventListener("input", () => this.#applyFilter());
  }

  /** Play the sample of a voice, or stop it. @param {string} voice its id */
  listen(voice) {
    this.#beforePreview();
    this.#preview.toggle(voice, greetingFor(this.#voices.find(({ id }) => id === voice)));
  }

  get voices() {
    return this.#voices;
  }

  /** The chosen voice as the server described it, or null without a list. */
  get chosen() {
    const id = this.#list.querySelector("input:checked")?.value;
    return this.#voices.find((voice) => voice.id === id) ?? null;
  }

  /** Choose a voice by its id; one that is not listed any more changes nothing. */
  choose(id) {
    const radio = [...this.#list.querySelectorAll("input")].find(({ value }) => value === id);
    if (!radio) return;
    radio.checked = true;
    this.#changed();
  }

  /** Show these voices. The choice survives as long as its voice does; else it is the server's default. */
  show(voices) {
    const chosen = this.chosen?.id;
    const kept = voices.some(({ id }) => id === chosen) ? chosen : voices.find((voice) => voice.default)?.id;
    const focused = this.#list.contains(document.activeElement) ? document.activeElement : null;
    this.#voices = voices;
    this.#list.replaceChildren(...voices.map((voice, index) => this.#card(voice, index, voice.id === (kept ?? voices[0]?.id))));
    if (focused) [...this.#list.querySelectorAll(focused.tagName)].find(({ value }) => value === focused.value)?.focus();
    this.#filter.hidden = voices.length <= MAX_UNFILTERED;
    this.#applyFilter();
    this.#changed();
  }

  stopPreview() {
    this.#preview.stop();
  }

  #card(voice, index, checked) {
    const radio = element("input", { type: "radio", name: "voice", value: voice.id, checked });
    const languages = languagesText(voice);
    const isTold = voice.description?.includes(languages);
    const about = element(
      "span",
      { className: "voice-about" },
      element("span", { className: "voice-name" }, voice.name),
      ...(isTold ? [] : [element("span", { className: "hint" }, languages)]),
      ...badgesOf(voice).map((text) => element("span", { className: "badge" }, text)),
      ...(voice.description ? [element("span", { className: "hint voice-says" }, voice.description)] : []),
    );
    const preview = element("button", { type: "button", className: "icon preview", value: voice.id });
    preview.ariaLabel = preview.title = `Listen to ${voice.name}`;
    preview.ariaPressed = "false";
    const card = element("div", { className: "voice" }, preview, element("label", {}, radio, about));
    card.style.setProperty("--hue", FIRST_HUE + index * GOLDEN_ANGLE);
    return card;
  }

  #showTabStops() {
    const chosen = this.chosen?.id;
    for (const button of this.#list.querySelectorAll(".preview")) button.tabIndex = button.value === chosen ? 0 : -1;
  }

  #showPlaying(voice) {
    for (const button of this.#list.querySelectorAll(".preview")) {
      button.ariaPressed = String(button.value === voice);
    }
  }

  #applyFilter() {
    const wanted = this.#filter.hidden ? "" : this.#filter.value.trim().toLowerCase();
    this.#voices.forEach((voice, index) => {
      const names = languagesOf(voice).map(languageName);
      const known = [...(voice.aliases ?? []), ...names, ...(voice.tags ?? [])];
      const text = [voice.name, voice.id, voice.description, ...known].join(" ").toLowerCase();
      this.#list.children[index].hidden = !text.includes(wanted);
    });
  }
}
