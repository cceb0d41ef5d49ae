/**
 * Text as nodes, in which `skipped` is marked: what the voice cannot speak.
 * @param {string} text @param {{start: number, end: number}[]} skipped in UTF-16 units
 */
export function markSkipped(text, skipped) {
  const nodes = [];
  let done = 0;
  for (const { start, end } of skipped) {
    const span = document.createElement("span");
    span.className = "skipped";
    span.append(text.slice(start, end));
    nodes.push(text.slice(done, start), span);
    done = end;
  }
  return [...nodes, text.slice(done)];
}

/**
 * The text field, and a mirror of its text behind it in which words light up as they are heard.
 *
 * The field's text is transparent; what is visible is the mirror, which wraps identically. So words light up where they
 * were written, and the field stays an ordinary one for keyboard, screen reader and spell checker.
 * Text is inserted as text nodes, never as markup.
 */
export class TextView {
  #container;
  #field;
  #mirror;
  #words = []; // spans of the utterance's words, in order
  #heardWords = 0;
  #rest = null; // the text node after the last word, or null while no utterance is shown
  #restStart = 0; // its offset in the field

  /** @param {HTMLElement} container scrolls @param {HTMLTextAreaElement} field @param {HTMLElement} mirror */
  constructor(container, field, mirror) {
    this.#container = container;
    this.#field = field;
    this.#mirror = mirror;
    this.showPlain();
  }

  get text() {
    return this.#field.value;
  }

  /** Show the text without any state. */
  showPlain() {
    this.#clear("plain");
    this.#mirror.append(this.text);
  }

  /** An utterance begins at offset `base`; its words follow through `addWords`. */
  begin(base) {
    this.#clear("utterance");
    this.#rest = document.createTextNode(this.text.slice(base));
    this.#restStart = base;
    this.#mirror.append(this.text.slice(0, base), this.#rest);
  }

  /** The field has changed, after the words shown so far if an utterance is shown. */
  update() {
    if (this.#rest) this.#rest.data = this.text.slice(this.#restStart);
    else this.showPlain();
  }

  /**
   * @param {{start: number, end: number, startSample?: number}[]} words and what the voice skips, without samples
   * @param {number} base offset at which their utterance begins
   */
  addWords(words, base) {
    for (const { start, end, startSample } of words) {
      const word = this.#rest.splitText(base + start - this.#restStart);
      this.#rest = word.splitText(end - start);
      this.#restStart = base + end;
      const span = document.createElement("span");
      span.className = startSample === undefined ? "skipped" : "word";
      word.replaceWith(span);
      span.append(word);
      if (startSample !== undefined) this.#words.push(span);
    }
  }

  /** The first `count` words were heard; the last of them is playing. */
  highlight(count) {
    if (count === this.#heardWords) return;
    this.#words[this.#heardWords - 1]?.classList.remove("now");
    for (const span of this.#words.slice(this.#heardWords, count)) span.classList.add("heard");
    this.#words[count - 1].classList.add("now");
    this.#heardWords = count;
    this.#scrollTo(this.#words[count - 1]);
  }

  /** All of the text was heard. */
  complete() {
    this.#words.at(-1)?.classList.remove("now");
    this.#mirror.dataset.shows = "done";
  }

  /** The utterance that began at `base` has ended: show which text was spoken, skipped as unspeakable, and which remains. */
  showReport(base, spoken, remaining, skipped) {
    this.#clear("report");
    const end = base + spoken.length + remaining.length;
    this.#mirror.append(this.text.slice(0, base));
    for (const [name, start, stop] of [
      ["spoken", base, base + spoken.length],
      ["remaining", base + spoken.length, end],
    ]) {
      const span = document.createElement("span");
      span.className = name;
      span.append(...markSkipped(this.text.slice(start, stop), name === "spoken" ? skipped : []));
      this.#mirror.append(span);
    }
    this.#mirror.append(this.text.slice(end));
  }

  #clear(shows) {
    this.#mirror.replaceChildren();
    this.#mirror.dataset.shows = shows;
    this.#words = [];
    this.#heardWords = 0;
    this.#rest = null;
  }

  #scrollTo(span) {
    const box = this.#container.getBoundingClientRect();
    const word = span.getBoundingClientRect();
    if (word.top < box.top || word.bottom > box.bottom) this.#container.scrollTop += word.top - box.top - box.height / 3;
  }
}
