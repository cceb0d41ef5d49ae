/**
 * "Speak while I type": sends what is appended to the text, one finished word at a time; Enter ends the utterance.
 *
 * The word being typed is held back until it is finished, so that it can still be corrected. Text that was sent cannot
 * be taken back and stays as it is while it is spoken; emptying the field means stop.
 */

/** A word that may still grow. Scripts without spaces have none: each of their characters is finished. */
const UNFINISHED = /[^\s\p{P}\p{S}\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]+$/u;

export class LiveInput {
  #field;
  #session;
  #settings;
  #on = false;
  #sentText = ""; // the beginning of the text, as far as it was sent
  #pendingText = ""; // the text after it

  /**
   * @param {HTMLTextAreaElement} field
   * @param {() => SpeechSession} session the current one
   * @param {() => object} settings
   */
  constructor(field, session, settings) {
    this.#field = field;
    this.#session = session;
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
    this.#session().endText();
  }

  /** Treat the current text as sent: only what is typed after it will be spoken. */
  skip() {
    this.#sentText = this.#field.value;
    this.#pendingText = "";
  }

  /** The field has changed. */
  input() {
    if (!this.#field.value.startsWith(this.#sentText)) this.#restoreSentText();
    const unfinished = UNFINISHED.exec(this.#field.value);
    this.#sendUpTo(unfinished ? unfinished.index : this.#field.value.length);
  }

  /** Enter: a line break, and all of the text may be spoken. */
  enter() {
    this.#field.setRangeText("\n", this.#field.value.length, this.#field.value.length, "end");
    this.#sendUpTo(this.#field.value.length);
    this.#session().endText();
    this.skip(); // a line of nothing but spaces
  }

  #sendUpTo(end) {
    const base = this.#sentText.length;
    const text = this.#field.value.slice(base, end);
    if (text && (this.#session().writing || text.trim())) {
      this.#sentText += text;
      this.#session().append(text, base, this.#settings());
    }
    this.#pendingText = this.#field.value.slice(this.#sentText.length);
  }

  /** Text that had been sent was edited. */
  #restoreSentText() {
    if (!this.#field.value) {
      this.#session().stop();
      this.skip();
    } else if (this.#session().state === "idle") {
      this.skip();
    } else {
      this.#field.value = this.#sentText + this.#pendingText;
    }
  }
}
