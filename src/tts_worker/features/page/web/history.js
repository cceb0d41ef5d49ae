/**
 * The utterances of this visit, the latest first: what was spoken, how it ended, and what can be done with it again.
 *
 * It is kept in the page and nowhere else. Texts are inserted as text, never as markup.
 */

const MAX_ENTRIES = 20;

function button(text, act) {
  const created = document.createElement("button");
  created.type = "button";
  created.className = "link";
  created.append(text);
  created.addEventListener("click", act);
  return created;
}

function element(name, className, ...children) {
  const created = document.createElement(name);
  created.className = className;
  created.append(...children);
  return created;
}

export class History {
  #list;
  #actions;

  /**
   * @param {HTMLOListElement} list
   * @param {{reuse(entry: object): void, download(entry: object): void}} actions with an entry of `add`
   */
  constructor(list, actions) {
    this.#list = list;
    this.#actions = actions;
  }

  /** @param {{text: string, settings: object, transport: string, firstAudioMs: number | null, message: string}} entry */
  add(entry) {
    const { text, settings, transport, firstAudioMs, message } = entry;
    const facts = [
      settings.voice,
      transport,
      firstAudioMs === null ? "" : `first audio ${Math.round(firstAudioMs)} ms`,
      message,
    ];
    const item = element(
      "li",
      "",
      element("p", "history-text", text.trim()),
      element("p", "hint", facts.filter(Boolean).join(" · ")),
      element(
        "p",
        "history-actions",
        button("Use again", () => this.#actions.reuse(entry)),
        button("Download WAV", () => this.#actions.download(entry)),
      ),
    );
    this.#list.prepend(item);
    while (this.#list.children.length > MAX_ENTRIES) this.#list.lastElementChild.remove();
  }
}
