/**
 * The turns of a conversation. Words of an answer turn from dim to normal as they are heard; what an interruption left
 * unheard is struck out. Text is inserted as text nodes, never as markup.
 */
import { markSkipped } from "../text-view.js";

const LABELS = { user: "You", assistant: "Agent" };

export class TurnsView {
  #list;
  #turns = new Map(); // turn -> its view

  /** @param {HTMLOListElement} list */
  constructor(list) {
    this.#list = list;
  }

  get isEmpty() {
    return !this.#list.children.length;
  }

  clear() {
    this.#list.replaceChildren();
    this.#turns.clear();
  }

  /** Say between two turns that something has happened. */
  note(text) {
    this.#remove(0);
    const item = document.createElement("li");
    item.className = "note";
    item.append(text);
    this.#list.append(item);
    this.#show(item);
  }

  /** The user said this. Turn 0 has words that are not final; without text it is removed. */
  user(turn, text) {
    this.#remove(0);
    if (!text) return;
    const { body, item } = this.#add(turn, "user");
    body.append(text);
    item.classList.toggle("interim", turn === 0);
    this.#show(item);
  }

  answer(turn, text) {
    let view = this.#turns.get(turn);
    if (!view) {
      view = this.#add(turn, "assistant");
      view.rest = document.createTextNode("");
      view.restStart = 0;
      view.words = [];
      view.heardWords = 0;
      view.body.append(view.rest);
      this.#show(view.item);
    }
    view.rest.data += text;
  }

  /** @param {{start: number, end: number, startSample?: number}[]} words and skipped text, in UTF-16 units of the answer */
  words(turn, words) {
    const view = this.#turns.get(turn);
    if (!view?.rest) return;
    for (const { start, end, startSample } of words) {
      const word = view.rest.splitText(start - view.restStart);
      view.rest = word.splitText(end - start);
      view.restStart = end;
      const span = document.createElement("span");
      span.className = startSample === undefined ? "skipped" : "word";
      word.replaceWith(span);
      span.append(word);
      if (startSample !== undefined) view.words.push(span);
    }
  }

  /** The first `count` words of the answer were heard. */
  heard(turn, count) {
    const view = this.#turns.get(turn);
    if (!view?.rest || count === view.heardWords) return;
    view.words[view.heardWords - 1]?.classList.remove("now");
    for (const span of view.words.slice(view.heardWords, count)) span.classList.add("heard");
    view.words[count - 1]?.classList.add("now");
    view.heardWords = count;
    if (count) this.#show(view.words[count - 1]);
  }

  settled(turn, { heard, unheard, skipped }) {
    const view = this.#turns.get(turn);
    if (!view) return;
    view.rest = null;
    view.item.classList.remove("speaking");
    const parts = [];
    if (heard) {
      const span = document.createElement("span");
      span.className = "heard";
      span.append(...markSkipped(heard, skipped));
      parts.push(span);
    }
    if (unheard.trim()) {
      const note = document.createElement("span");
      note.className = "visually-hidden";
      note.append(" Not heard: ");
      const struck = document.createElement("del");
      struck.append(unheard);
      parts.push(note, struck);
    }
    view.body.replaceChildren(...parts);
  }

  #add(turn, role) {
    const item = document.createElement("li");
    item.className = role;
    item.classList.toggle("speaking", role === "assistant");
    const label = document.createElement("span");
    label.className = "speaker";
    label.append(LABELS[role]);
    const body = document.createElement("p");
    body.dir = "auto";
    item.append(label, body);
    const interim = this.#turns.get(0)?.item;
    if (interim) interim.before(item);
    else this.#list.append(item);
    const view = { item, body };
    this.#turns.set(turn, view);
    return view;
  }

  #remove(turn) {
    this.#turns.get(turn)?.item.remove();
    this.#turns.delete(turn);
  }

  /** Scroll the list, and not the page, to an element that is outside of it. */
  #show(element) {
    const box = this.#list.getBoundingClientRect();
    const { top, bottom } = element.getBoundingClientRect();
    if (bottom > box.bottom || top < box.top) this.#list.scrollTop += top - box.top - box.height / 3;
  }
}
