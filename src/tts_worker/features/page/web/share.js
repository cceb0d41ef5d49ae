/**
 * A link that opens the page with the same settings. They are in the fragment, which browsers send to no server.
 *
 * It has the text only if the user wants that, and never a key. What a link says is not trusted: it fills in fields, and
 * nothing is spoken before a click. Offers: linkOf, readLink, ShareLink.
 */

const COPIED_MS = 1500;
const MAX_TEXT_CHARS = 4000;
const NUMBERS = ["speed", "seed", "flush_after_ms"];
const TEXTS = ["voice", "instruct", "text"];

/** @param {string} page address without fragment @param {object} settings of an utterance @param {string} text may be empty */
export function linkOf(page, settings, text = "") {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...settings, text: text.slice(0, MAX_TEXT_CHARS) })) {
    if (value !== null && value !== undefined && value !== "") fields.set(name, value);
  }
  return `${page}#${fields}`;
}

/** The settings and the text of a link. @param {string} fragment @returns {object} without what is not there */
export function readLink(fragment) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const found = {};
  for (const name of TEXTS) if (fields.get(name)) found[name] = fields.get(name).slice(0, MAX_TEXT_CHARS);
  for (const name of NUMBERS) {
    const value = Number.parseFloat(fields.get(name) ?? "");
    if (Number.isFinite(value)) found[name] = value;
  }
  return found;
}

export class ShareLink {
  /**
   * @param {{button: HTMLButtonElement, withText: HTMLInputElement, link: HTMLInputElement}} elements
   * @param {() => {settings: object, text: string}} current
   */
  constructor({ button, withText, link }, current) {
    button.addEventListener("click", async () => {
      const { settings, text } = current();
      link.value = linkOf(location.origin + location.pathname, settings, withText.checked ? text : "");
      const label = button.textContent;
      try {
        await navigator.clipboard.writeText(link.value);
        button.textContent = "Copied";
      } catch {
        link.hidden = false; // no clipboard on an insecure page
        link.select();
        return;
      }
      setTimeout(() => (button.textContent = label), COPIED_MS);
    });
  }
}
