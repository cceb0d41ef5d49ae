/**
 * Shows the program that does what the page would do now, in the chosen language, and copies it.
 */
import { tokenStore } from "./access.js";
import { codeFor, LANGUAGES } from "./code-samples.js";

const COPIED_MS = 1500;

export class CodePanel {
  #code;
  #request;
  #languages;

  /**
   * @param {{panel: HTMLDetailsElement, languages: HTMLElement, code: HTMLElement, copy: HTMLElement}} elements
   * @param {() => {text: string, settings: object}} request what the page would speak now
   */
  constructor({ panel, languages, code, copy }, request) {
    this.#code = code;
    this.#request = request;
    this.#languages = languages;
    for (const name of Object.keys(LANGUAGES)) this.#addLanguage(name);
    panel.addEventListener("toggle", () => this.update());
    languages.addEventListener("change", () => this.update());
    copy.addEventListener("click", () => this.#copy(copy));
  }

  /** The text or the settings may have changed. */
  update() {
    if (!this.#code.closest("details").open) return;
    const language = this.#languages.querySelector("input:checked").value;
    const request = { origin: location.origin, hasKey: Boolean(tokenStore.token), ...this.#request() };
    this.#code.textContent = codeFor(language, request);
  }

  #addLanguage(name) {
    const label = document.createElement("label");
    const radio = Object.assign(document.createElement("input"), { type: "radio", name: "language", value: name });
    radio.defaultChecked = !this.#languages.querySelector("input");
    const text = document.createElement("span");
    text.append(name);
    label.append(radio, text);
    this.#languages.append(label);
  }

  async #copy(button) {
    try {
      await navigator.clipboard.writeText(this.#code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(this.#code); // no clipboard on an insecure page: ready for Ctrl + C
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
  }
}
