/**
 * Two voices with the same text, side by side: while one plays, the other one takes over at the same place.
 *
 * Blind, the two have no names and a random order until the user asks who is who.
 */

const MAX_CHARS = 300;
const byId = (id) => document.getElementById(id);

export class Compare {
  #clips;
  #current;
  #problem;
  #audio = new Audio();
  #playing = null; // the button whose voice plays
  #request = new AbortController();
  #swapped = false;
  #voices = [];

  /**
   * @param {import("./clips.js").Clips} clips
   * @param {() => {text: string, settings: object}} current what the page would speak now
   * @param {{problem(text: string): void, beforePlaying(): void}} listener
   */
  constructor(clips, current, { problem, beforePlaying }) {
    this.#clips = clips;
    this.#current = current;
    this.#problem = problem;
    this.#audio.onended = () => this.stop();
    for (const button of this.#buttons) {
      button.addEventListener("click", () => {
        beforePlaying();
        this.#toggle(button);
      });
    }
    byId("compare-with").addEventListener("change", () => this.#restart());
    byId("compare-blind").addEventListener("change", () => this.#restart());
    byId("compare-reveal").addEventListener("click", () => this.#label(true));
  }

  /** These voices can be chosen. @param {{id: string, name: string}[]} voices @param {string} chosen the other one */
  show(voices, chosen) {
    const select = byId("compare-with");
    const before = select.value;
    const others = voices.filter(({ id }) => id !== chosen);
    this.#voices = voices;
    byId("compare").hidden = !others.length;
    select.replaceChildren(...others.map(({ id, name }) => new Option(name, id)));
    select.value = others.some(({ id }) => id === before) ? before : (others[0]?.id ?? "");
    this.#restart();
  }

  stop() {
    this.#request.abort();
    this.#audio.pause();
    this.#playing = null;
    for (const button of this.#buttons) button.ariaPressed = "false";
  }

  get #buttons() {
    return [byId("compare-a"), byId("compare-b")];
  }

  #restart() {
    this.stop();
    this.#swapped = byId("compare-blind").checked && Math.random() < 0.5;
    this.#label(!byId("compare-blind").checked);
  }

  /** The settings with the voice of this button. */
  #settingsOf(button) {
    const { settings } = this.#current();
    const isOther = (button === byId("compare-b")) !== this.#swapped;
    return isOther ? { ...settings, voice: byId("compare-with").value } : settings;
  }

  #label(named) {
    byId("compare-reveal").hidden = named;
    this.#buttons.forEach((button, index) => {
      const id = this.#settingsOf(button).voice?.split("@")[0];
      const name = named ? (this.#voices.find((voice) => voice.id === id)?.name ?? id) : `Voice ${"AB"[index]}`;
      button.lastElementChild.textContent = name;
    });
  }

  async #toggle(button) {
    if (this.#playing === button) {
      this.stop();
      return;
    }
    const isRunning = this.#playing && !this.#audio.paused && this.#audio.duration;
    const share = isRunning ? this.#audio.currentTime / this.#audio.duration : 0;
    this.stop();
    this.#problem("");
    const { signal } = (this.#request = new AbortController());
    this.#playing = button;
    button.ariaPressed = "true";
    try {
      const { url, samples } = await this.#clips.get(this.#text, this.#settingsOf(button), signal);
      if (signal.aborted) return;
      this.#audio.src = url;
      this.#audio.currentTime = (share * samples.length) / 24000;
      await this.#audio.play();
    } catch (error) {
      if (signal.aborted) return;
      this.stop();
      this.#problem(error.message);
    }
  }

  /** The beginning of the text, up to the end of a word. */
  get #text() {
    const { text } = this.#current();
    return text.length <= MAX_CHARS ? text : text.slice(0, MAX_CHARS).replace(/\s+\S*$/u, "");
  }
}
