/**
 * Example texts, as buttons that fill the text field: for each something that a text-to-speech engine may get wrong.
 */

import { preferredLanguage } from "./languages.js";

const EXAMPLES = {
  en: {
    Greeting: "Good morning, and thank you for calling. How can I help you today?",
    Numbers: "Your order no. 4711 over $1,299.50 ships on 3 March 2026 at 2:30 pm, to 221b Baker Street.",
    Markdown: "**Bold**, `code` and [a link](https://example.com) are read as words:\n\n- no asterisks,\n- no brackets.",
    "Interrupt me":
      "I could go on about this for quite a while, because there is always one more thing to say, and one more after " +
      "that. But you do not have to wait until I am done. Press Stop, or Escape, or just speak over me, and I am " +
      "silent at once. The page then shows which words you heard, and which ones you did not, so that the next answer " +
      "can continue from there.",
  },
  zh: {
    问候: "早上好，感谢您的来电。请问有什么可以帮您？",
    数字: "您的订单4711，共1299.50元，将于2026年3月3日下午2点30分发货。",
    打断我: "这件事我可以讲很久，因为总还有一点没有说完。不过您不必等我说完。按下停止，或者直接开口，我马上就会安静下来。",
  },
};

/** The texts by title for a voice that speaks these languages; English ones where there are no others. */
function examplesFor(languages) {
  return EXAMPLES[preferredLanguage(languages, EXAMPLES)];
}

/** Whether the text is one of the examples. */
export function isExample(text) {
  return Object.values(EXAMPLES).some((texts) => Object.values(texts).includes(text));
}

export class Examples {
  #container;
  #choose;

  /** @param {HTMLElement} container @param {(text: string) => void} choose called with the text of a chosen example */
  constructor(container, choose) {
    this.#container = container;
    this.#choose = choose;
  }

  /** Show the examples for a voice that speaks these languages. @param {string[]} languages */
  show(languages) {
    this.#container.replaceChildren(
      ...Object.entries(examplesFor(languages)).map(([title, text]) => {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "chip";
        button.append(title);
        button.addEventListener("click", () => this.#choose(text));
        return button;
      }),
    );
  }
}
