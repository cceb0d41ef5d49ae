/**
 * The script: the text field, and the same text behind it in which words light up.
 *
 * The field's own letters are transparent; what one sees is the mirror, which wraps exactly alike. So the words light
 * up where they were written, and the field stays an ordinary one for keyboard, screen reader and spell checker.
 * It only shows what it is told, as text and never as markup.
 */
export class Script {
  #box;
  #field;
  #mirror;
  #words = []; // spans of the turn's words, in order
  #heardWords = 0;
  #rest = null; // the text node after the last word, or null while no turn is shown
  #restStart = 0; // where it begins

  /** @param {HTMLElement} box scrolls @param {HTMLTextAreaElement} field @param {HTMLElement} mirror */
  constructor(box, field, mirror) {
    this.#box = box;
    this.#field = field;
    this.#mirror = mirror;
    this.plain();
  }

  get text() {
    return this.#field.value;
  }

  /** Only the text. */
  plain() {
    this.#clear("plain");
    this.#mirror.append(this.text);
  }

  /** A turn begins at `base`; the words will follow. */
  begin(base) {
    this.#clear("turn");
    this.#rest = document.createTextNode(this.text.slice(base));
    this.#restStart = base;
    this.#mirror.append(this.text.slice(0, base), this.#rest);
  }

  /** The field has changed, behind the words shown so far if a turn is shown. */
  follow() {
    if (this.#rest) this.#rest.data = this.text.slice(this.#restStart);
    else this.plain();
  }

  /** @param {{start: number, end: number}[]} words @param {number} base where their turn begins */
  addWords(words, base) {
    for (const { start, end } of words) {
      const word = this.#rest.splitText(base + start - this.#restStart);
      this.#rest = word.splitText(end - start);
      this.#restStart = base + end;
      const span = document.createElement("span");
      span.className = "word";
      word.replaceWith(span);
      span.append(word);
      this.#words.push(span);
    }
  }

  /** The first `count` words were heard; the last of them is being heard. */
  light(count) {
    if (count === this.#heardWords) return;
    this.#words[this.#heardWords - 1]?.classList.remove("now");
    for (const span of this.#words.slice(this.#heardWords, count)) span.classList.add("heard");
    this.#words[count - 1].classList.add("now");
    this.#heardWords = count;
    this.#reveal(this.#words[count - 1]);
  }

  /** All of it was heard. */
  complete() {
    this.#words.at(-1)?.classList.remove("now");
    this.#mirror.dataset.shows = "done";
  }

  /** The turn that began at `base` was cut: what was spoken, and what was not. */
  cut(base, spoken, remaining) {
    this.#clear("receipt");
    const end = base + spoken.length + remaining.length;
    this.#mirror.append(this.text.slice(0, base));
    for (const [name, start, stop] of [
      ["spoken", base, base + spoken.length],
      ["remaining", base + spoken.length, end],
    ]) {
      const span = document.createElement("span");
      span.className = name;
      span.append(this.text.slice(start, stop));
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

  #reveal(span) {
    const box = this.#box.getBoundingClientRect();
    const word = span.getBoundingClientRect();
    if (word.top < box.top || word.bottom > box.bottom) this.#box.scrollTop += word.top - box.top - box.height / 3;
  }
}
