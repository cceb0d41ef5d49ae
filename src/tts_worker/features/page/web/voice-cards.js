/**
 * The voices as cards: a radio button each, so that arrow keys choose, with its languages, abilities and a preview.
 *
 * Text of the server is inserted as text, never as markup.
 */
import { greetingFor, languageName, languagesOf } from "./languages.js";
import { Preview } from "./preview.js";

/** More languages than this are counted on a card, and named below the list. */
const MAX_LISTED_LANGUAGES = 3;
/** With more voices than this there is a field that filters them. */
const MAX_UNFILTERED = 8;

const byId = (id) => document.getElementById(id);

function element(name, properties, ...children) {
  const created = Object.assign(document.createElement(name), properties);
  created.append(...children);
  return created;
}

function languagesText(voice) {
  const languages = languagesOf(voice);
  if (languages.length > MAX_LISTED_LANGUAGES) return `${languages.length} languages`;
  return languages.map(languageName).join(", ");
}

function badgesOf(voice) {
  const styles = (voice.styles ?? []).length;
  return [
    voice.gender ?? "",
    voice.stored ? "added" : "",
    styles > 1 ? `${styles} styles` : "",
    (voice.capabilities ?? []).includes("instruct") ? "instructions" : "",
  ].filter(Boolean);
}

export class VoiceCards {
  #list = byId("voice-list");
  #filter = byId("voice-filter");
  #voices = [];
  #changed;
  #preview;

  /** @param {{changed(): void, problem(text: string): void, beforePreview(): void}} listener */
  constructor(listener) {
    this.#changed = listener.changed;
    this.#preview = new Preview({ playing: (voice) => this.#showPlaying(voice), failed: listener.problem });
    this.#list.addEventListener("change", () => this.#changed());
    this.#list.addEventListener("click", ({ target }) => {
      const button = target.closest(".preview");
      if (!button) return;
      listener.beforePreview();
      this.#preview.toggle(button.value, greetingFor(this.#voices.find(({ id }) => id === button.value)));
    });
    this.#filter.addEventListener("input", () => this.#applyFilter());
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
    this.#list.replaceChildren(...voices.map((voice) => this.#card(voice, voice.id === (kept ?? voices[0]?.id))));
    if (focused) [...this.#list.querySelectorAll(focused.tagName)].find(({ value }) => value === focused.value)?.focus();
    this.#filter.hidden = voices.length <= MAX_UNFILTERED;
    this.#applyFilter();
    this.#changed();
  }

  stopPreview() {
    this.#preview.stop();
  }

  /** Forget what a voice sounded like. @param {string} voice its id */
  forget(voice) {
    this.#preview.forget(voice);
  }

  #card(voice, checked) {
    const radio = element("input", { type: "radio", name: "voice", value: voice.id, checked });
    const about = element(
      "span",
      { className: "voice-about" },
      element("span", { className: "voice-name" }, voice.name),
      element("span", { className: "hint" }, languagesText(voice)),
      ...badgesOf(voice).map((text) => element("span", { className: "badge" }, text)),
    );
    const preview = element("button", { type: "button", className: "icon preview", value: voice.id });
    preview.ariaLabel = preview.title = `Listen to ${voice.name}`;
    preview.ariaPressed = "false";
    return element("div", { className: "voice" }, element("label", {}, radio, about), preview);
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
