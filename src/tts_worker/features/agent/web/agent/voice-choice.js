/**
 * The choice of the agent's voice, where the server has more than one.
 */
import { fetchVoices } from "../api.js";

export class VoiceChoice {
  #field;
  #select;

  /** @param {HTMLElement} field @param {HTMLSelectElement} select @param {(voice: string) => void} chosen */
  constructor(field, select, chosen) {
    this.#field = field;
    this.#select = select;
    select.addEventListener("change", () => chosen(select.value));
  }

  /** @param {string | null} current the agent's voice; null: the server's default */
  async show(current) {
    const { voices = [] } = await fetchVoices();
    this.#field.hidden = voices.length < 2;
    this.#select.replaceChildren(...voices.map(({ id, name }) => new Option(name, id)));
    this.#select.value = current ?? voices.find((voice) => voice.default)?.id ?? "";
  }
}
