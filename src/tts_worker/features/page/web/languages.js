/**
 * Languages of voices: their names in English, and a sentence in each for a preview.
 */

const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });

const GREETINGS = {
  de: "Hallo! So klingt meine Stimme, wenn ich dir etwas vorlese.",
  en: "Hello! This is what my voice sounds like when I read to you.",
  es: "¡Hola! Así suena mi voz cuando te leo algo.",
  fr: "Bonjour ! Voici ma voix quand je vous lis un texte.",
  it: "Ciao! Questa è la mia voce quando ti leggo qualcosa.",
  ja: "こんにちは。これが私の声です。",
  ko: "안녕하세요. 이것이 제 목소리입니다.",
  ru: "Привет! Вот так звучит мой голос.",
  yue: "你好，呢個係我嘅聲音。",
  zh: "你好，这就是我的声音，很高兴为你朗读。",
};

/** The languages of a voice; "mul" (many) says nothing. @param {{languages: string[]}} voice */
export function languagesOf(voice) {
  return voice.languages.filter((language) => language !== "mul");
}

/** The language by name; a code that the browser does not know, or that is malformed, is shown as it is. */
export function languageName(code) {
  try {
    return names.of(code);
  } catch {
    return code;
  }
}

/**
 * Which of the languages to use: one of the visitor if there is one, else the first that has an entry in `texts`.
 * @param {string[]} languages of a voice @param {object} texts by language
 */
export function preferredLanguage(languages, texts, visitor = navigator.languages) {
  const base = (tag) => tag.split("-")[0];
  const offered = languages.map(base).filter((tag) => tag in texts);
  return visitor.map(base).find((tag) => offered.includes(tag)) ?? offered[0] ?? "en";
}

/** A sentence that the voice can speak. @param {{languages: string[]}} voice */
export function greetingFor(voice) {
  return GREETINGS[preferredLanguage(languagesOf(voice), GREETINGS)];
}
