/**
 * What the user says, in words: recognized by the server, by the browser, or not at all.
 *
 * Each kind takes the begin and the end of the user's voice and tells the session what to do. Without recognition the
 * voice still interrupts: half a second of it is taken for words, less for a cough.
 */

/** After this much silence the user has finished. Together with the detector's own delay it is longer than a comma. */
const END_MS = 400;
/** Words of the browser are ignored unless the user's voice was detected at most this long before: they are an echo. */
const VOICE_VALID_MS = 4000;
/** How long the browser's recognizer may take for the first words before the voice counts as noise. */
const NO_WORDS_MS = 2500;
/** Without recognition: voice for this long interrupts. */
const SPEECH_MS = 500;
/** Stands for words that nothing recognized. */
const UNKNOWN_WORDS = "…";

const Recognizer = globalThis.SpeechRecognition ?? globalThis.webkitSpeechRecognition;

/** Whether this browser offers to recognize speech. */
export const browserRecognizes = Boolean(Recognizer);

/** Reports the user's voice, without the pauses in a sentence. */
class VoiceTurns {
  #timer = 0;
  #active = false;

  /** @param {(atMs: number) => void} began @param {() => void} ended */
  constructor(began, ended) {
    this.began = began;
    this.ended = ended;
  }

  speech(atMs) {
    clearTimeout(this.#timer);
    if (this.#active) return;
    this.#active = true;
    this.began(atMs);
  }

  silence() {
    if (this.#active) this.#timer = setTimeout(() => this.stop(), END_MS);
  }

  stop() {
    clearTimeout(this.#timer);
    if (!this.#active) return;
    this.#active = false;
    this.ended();
  }
}

/** The server recognizes: it is sent the audio of the user's voice. */
export class ServerRecognition {
  takesAudio = true;

  constructor(session, sampleRate) {
    this.voice = new VoiceTurns(
      (atMs) => session.voice(true, sampleRate(), atMs),
      () => session.voice(false, sampleRate()),
    );
  }

  start() {}

  stop() {
    this.voice.stop();
  }
}

/** Nothing recognizes: voice of half a second interrupts, and its end asks for an answer. */
export class NoRecognition {
  takesAudio = false;
  #session;
  #timer = 0;
  #isSpeech = false;

  constructor(session, sampleRate) {
    this.#session = session;
    this.voice = new VoiceTurns(
      (atMs) => {
        this.#isSpeech = false;
        session.voice(true, sampleRate(), atMs);
        this.#timer = setTimeout(() => this.#interrupt(), SPEECH_MS);
      },
      () => this.#end(),
    );
  }

  #interrupt() {
    this.#isSpeech = true;
    this.#session.interrupt();
  }

  #end() {
    clearTimeout(this.#timer);
    this.#session.voice(false);
    if (this.#isSpeech) this.#session.say(UNKNOWN_WORDS);
    else this.#session.words("", true);
  }

  start() {}

  stop() {
    this.voice.stop();
  }
}

/** The browser recognizes (Web Speech API). Some browsers send the audio to a service of their vendor. */
export class BrowserRecognition {
  takesAudio = false;
  #session;
  #failed;
  #recognizer = null;
  #voiceAtMs = -Infinity;
  #awaitsWords = false; // interim words will become final
  #hasWords = false;
  #timer = 0;

  /** @param {(text: string) => void} failed called once with the reason when it does not work */
  constructor(session, sampleRate, failed) {
    this.#session = session;
    this.#failed = failed;
    this.voice = new VoiceTurns(
      (atMs) => {
        this.#voiceAtMs = Infinity; // the voice is heard now
        this.#hasWords = false;
        clearTimeout(this.#timer);
        session.voice(true, sampleRate(), atMs);
      },
      () => {
        this.#voiceAtMs = Date.now();
        session.voice(false, sampleRate());
        if (this.#hasWords && !this.#awaitsWords) session.words("", true);
        else this.#timer = setTimeout(() => this.#giveUp(), NO_WORDS_MS);
      },
    );
  }

  start() {
    const recognizer = new Recognizer();
    this.#recognizer = recognizer;
    recognizer.continuous = true;
    recognizer.interimResults = true;
    recognizer.lang = navigator.language;
    recognizer.onresult = (event) => this.#onResult(event);
    recognizer.onerror = ({ error }) => {
      if (error === "no-speech" || error === "aborted") return;
      this.stop();
      this.#failed(`The browser's speech recognition does not work (${error}).`);
    };
    // Browsers end it after a while.
    recognizer.onend = () => {
      if (this.#recognizer === recognizer) setTimeout(() => this.#recognizer === recognizer && recognizer.start(), 200);
    };
    recognizer.start();
  }

  stop() {
    const recognizer = this.#recognizer;
    this.#recognizer = null;
    recognizer?.abort();
    clearTimeout(this.#timer);
    this.voice.stop();
  }

  /** Nothing final arrived after the voice. */
  #giveUp() {
    this.#awaitsWords = false;
    this.#session.words("", true);
  }

  #onResult(event) {
    if (Date.now() - this.#voiceAtMs > VOICE_VALID_MS) return;
    let interim = "";
    for (const result of [...event.results].slice(event.resultIndex)) {
      const text = result[0].transcript.trim();
      if (!text) continue;
      this.#hasWords = true;
      if (result.isFinal) this.#session.words(text, true);
      else interim = `${interim} ${text}`.trim();
    }
    this.#awaitsWords = Boolean(interim);
    if (this.#hasWords) clearTimeout(this.#timer);
    if (interim && this.#voiceAtMs !== Infinity) this.#timer = setTimeout(() => this.#giveUp(), NO_WORDS_MS);
    if (interim) this.#session.words(interim, false);
  }
}
