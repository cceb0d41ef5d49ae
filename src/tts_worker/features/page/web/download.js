/**
 * Saves speech as a WAV file: it is synthesized over HTTP, as fast as the engine can, with the settings of an utterance.
 */
import { synthesize } from "./api.js";
import { speechRequest } from "./code-samples.js";
import { withLength } from "./wav.js";

const NAME_WORDS = 6;

/** A file name of the first words. */
function fileName(text) {
  const words = text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? ["speech"];
  return `${words.slice(0, NAME_WORDS).join("-").slice(0, 60)}.wav`;
}

/** Rejects with an Error for the user. @param {string} text @param {object} settings of the utterance */
export async function downloadSpeech(text, settings) {
  const file = await withLength(await synthesize(speechRequest(text, settings)));
  const url = URL.createObjectURL(file);
  Object.assign(document.createElement("a"), { href: url, download: fileName(text) }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
