/**
 * "Speak while I type": hands over what is appended to the text, a finished word at a time; Enter ends the utterance.
 *
 * The word being typed is held back until it is finished, so that a slip can still be mended. What was handed over
 * cannot be taken back and stays as it is while it is spoken; emptying the field means stop.
 */

/** A word that may still grow. Scripts without spaces have none: each of their characters is finished. */
const UNFINISHED = /[^\s\p{P}\p{S}\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]+$/u;

export class Typist {
  #field;
  #conversation;
  #settings;
  #on = false;
  #handed = ""; // the beginning of the text, as far as it was handed over
  #pending = ""; // what follows it

  /** @param {HTMLTextAreaElement} field @param {object} conversation @param {() => object} settings */
  constructor(field, conversation, settings) {
    this.#field = field;
    this.#conversation = conversation;
    this.#settings = settings;
  }

  get on() {
    return this.#on;
  }

  turnOn() {
    this.#on = true;
    this.skip();
  }

  turnOff() {
    this.#on = false;
    this.#conversation.endText();
  }

  /** What the field holds now will not be handed over: only what comes after it. */
  skip() {
    this.#handed = this.#field.value;
    this.#pending = "";
  }

  /** The field has changed. */
  input() {
    if (!this.#field.value.startsWith(this.#handed)) this.#mend();
    const unfinished = UNFINISHED.exec(this.#field.value);
    this.#handOver(unfinished ? unfinished.index : this.#field.value.length);
  }

  /** Enter: a new line, and all of the text may be spoken. */
  enter() {
    this.#field.setRangeText("\n", this.#field.value.length, this.#field.value.length, "end");
    this.#handOver(this.#field.value.length);
    this.#conversation.endText();
    this.skip(); // a line of nothing but spaces
  }

  #handOver(end) {
    const base = this.#handed.length;
    const text = this.#field.value.slice(base, end);
    if (text && (this.#conversation.writing || text.trim())) {
      this.#handed += text;
      this.#conversation.append(text, base, this.#settings());
    }
    this.#pending = this.#field.value.slice(this.#handed.length);
  }

  /** The text was changed where it had been handed over already. */
  #mend() {
    if (!this.#field.value) {
      this.#conversation.stop();
      this.skip();
    } else if (this.#conversation.state === "idle") {
      this.skip();
    } else {
      this.#field.value = this.#handed + this.#pending;
    }
  }
}
