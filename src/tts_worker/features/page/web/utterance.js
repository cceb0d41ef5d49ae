/**
 * One utterance: its text, its word timestamps, how much of it was heard, and how it ended.
 *
 * The server counts text in characters (code points), a browser in UTF-16 units; this module is the only place that
 * converts. It knows neither the network nor the page.
 */

/** The player fades out over the last samples it has. */
const FADED_SAMPLES = 1200;
/** Silence after the last word for which more text is awaited. */
const SILENCE_SAMPLES = 12000;

export class Utterance {
  number = null; // the server's, once it has started
  words = []; // {start, end, startSample, endSample}: UTF-16 units of `text`, samples of the utterance
  skipped = []; // {start, end}: what the voice skips, as far as the server has told
  heardWords = 0;
  playedSamples = 0;
  firstAudioMs = null;
  times = { askedMs: 0, sentMs: null, acceptedMs: null, firstFrameMs: null, heardMs: null }; // wall clock, see latencies.js
  gaps = 0;
  renderedSamples = 0; // by the player; heard a little later
  paused = false;
  stop = null; // a stop by the user: {atMs, reason, pending, playedSamples, silentMs, answeredMs}
  ending = null; // the server's terminal event
  rejection = null;
  #chars = 0; // one position in `text`, in characters ...
  #units = 0; // ... and in UTF-16 units
  #dryFrom = Infinity; // all audio up to here was rendered, and then there was none

  constructor(number, { text, base, settings, open, askedAtMs }) {
    this.context = `utterance-${number}`;
    this.text = text;
    this.base = base;
    this.settings = settings;
    this.open = open;
    this.askedAtMs = askedAtMs;
    this.times.askedMs = askedAtMs;
  }

  /**
   * Add word timestamps of the server and what the voice skips before them.
   * @returns {{start: number, end: number, startSample?: number}[]} both in the order of the text, with offsets in UTF-16
   *   units; skipped text has no samples
   */
  addWords(words, skipped = []) {
    const runs = [
      ...words.map((word) => ({ ...word, start: word.start_char, end: word.end_char })),
      ...skipped,
    ].sort((one, other) => one.start - other.start);
    const added = runs.map(({ start, end, start_sample, end_sample }) => {
      const units = { start: this.#toUnits(start), end: this.#toUnits(end) };
      return start_sample === undefined ? units : { ...units, startSample: start_sample, endSample: end_sample };
    });
    this.words.push(...added.filter(isWord));
    this.skipped.push(...added.filter((run) => !isWord(run)));
    return added;
  }

  /** Offsets only grow, so the text is scanned once. */
  #toUnits(chars) {
    while (this.#chars < chars && this.#units < this.text.length) {
      this.#units += this.text.codePointAt(this.#units) > 0xffff ? 2 : 1;
      this.#chars += 1;
    }
    return this.#units;
  }

  /** The player has rendered the first `samples` samples. */
  render(samples) {
    this.renderedSamples = samples;
    if (samples > this.#dryFrom + FADED_SAMPLES) this.#dryFrom = Infinity; // there is audio again
  }

  /** The player has no audio left. */
  runDry() {
    this.#dryFrom = this.renderedSamples;
  }

  /** Whether all that was written is spoken, and more may be written. Tracks do not say when their audio ends. */
  get awaitsText() {
    if (!this.open) return false;
    const lastEnd = this.words.at(-1)?.endSample ?? Infinity;
    return this.#dryFrom !== Infinity || this.renderedSamples > lastEnd + SILENCE_SAMPLES;
  }

  /** The first `samples` samples were heard. */
  hear(samples) {
    this.playedSamples = samples;
    while (this.heardWords < this.words.length && this.words[this.heardWords].startSample <= samples) {
      this.heardWords += 1;
    }
  }

  /**
   * How it ended: `kind`, the text that was spoken and that remains, what the voice skipped of the former, whether the
   * rest can be spoken, and a sentence.
   * @returns {{kind: string, spoken: string, remaining: string, skipped: {start: number, end: number}[],
   *   speakable: boolean, message: string}}
   */
  outcome() {
    const { ending } = this;
    const complete = ending.type === "done" && !this.stop;
    if (complete && ending.reason === "nothing_to_speak") {
      const message = "There is nothing here that can be spoken.";
      return { kind: "empty", spoken: "", remaining: this.text, skipped: [], speakable: false, message };
    }
    if (complete) {
      const skipped = toUnits(this.text, ending.skipped);
      const message = `Finished.${explainSkipped(this.text, skipped)}`;
      return { kind: "done", spoken: this.text, remaining: "", skipped, speakable: false, message };
    }
    const report = this.#report();
    const error = this.rejection ?? (ending.type === "error" ? ending : null);
    return {
      kind: this.rejection ? "error" : this.stop ? "stopped" : ending.type,
      ...report,
      speakable: error?.code !== "unspeakable_text" && /[\p{L}\p{N}]/u.test(report.remaining),
      message: error ? explain(error) : this.#explainEnd(report),
    };
  }

  /** The server's playback report; without one, the same rule is applied here. */
  #report() {
    const { ending } = this;
    if (!("text_spoken" in ending) || (ending.type !== "stopped" && this.stop)) {
      const report = localReport(this.text, this.words, this.playedSamples);
      return { ...report, skipped: this.skipped.filter(({ start }) => start < report.spoken.length) };
    }
    // Over WebRTC a report that is too long for one message holds the lengths of the texts instead of the texts.
    const spoken = ending.text_omitted
      ? [...this.text].slice(0, ending.spoken_chars).join("")
      : ending.text_spoken;
    const remaining = ending.text_omitted ? this.text.slice(spoken.length) : ending.text_remaining;
    return { spoken, remaining, skipped: toUnits(spoken, ending.skipped) };
  }

  #explainEnd({ spoken, remaining, skipped }) {
    const total = characters(spoken + remaining);
    const count = characters(withoutSkipped(spoken, skipped));
    const heard = `${count} of ${total} characters were heard.${explainSkipped(spoken, skipped)}`;
    switch (this.ending.type) {
      case "lost":
        return `Cut off. ${heard}`;
      case "truncated":
        return `The voice ended before the text did. ${heard}`;
    }
    switch (this.ending.reason) {
      case "pause_timeout":
        return `Paused for too long: the server ended it. ${heard}`;
      case "barge_in":
        return `Interrupted by you. ${heard}`;
      case "drain":
        return `Cut off: the server is shutting down. ${heard}`;
    }
    return `Stopped. ${heard}`;
  }
}

/** The number of characters in the text, as the server counts them. */
function characters(text) {
  let count = 0;
  for (const _ of text) count += 1;
  return count.toLocaleString("en");
}

const SHOWN_RUNS = 3; // in a sentence
const isWord = (run) => "startSample" in run;

/** Ranges of `text` that the server counts in characters, in UTF-16 units. */
export function toUnits(text, runs = []) {
  return new Utterance(0, { text }).addWords([], runs);
}

export function withoutSkipped(text, skipped) {
  return skipped.reduceRight((rest, { start, end }) => rest.slice(0, start) + rest.slice(end), text);
}

/** What the voice has skipped of `text`, as a sentence after another one; empty if it has skipped nothing. */
export function explainSkipped(text, skipped) {
  if (!skipped.length) return "";
  const shown = skipped.slice(0, SHOWN_RUNS).map(({ start, end }) => `“${text.slice(start, end)}”`);
  const others = skipped.length - shown.length;
  if (others) shown.push(`${others.toLocaleString("en")} more`);
  return ` The voice cannot speak ${shown.join(", ")}: skipped.`;
}

/**
 * Splits the text by what was played: a word counts as spoken when at least half of it was heard, with the characters
 * attached to it up to the next space. The rule of the server's own reports, for when none arrives.
 */
export function localReport(text, words, playedSamples) {
  let cut = 0;
  let following = text.length;
  for (const word of words) {
    if (2 * playedSamples < word.startSample + word.endSample) {
      following = word.start;
      break;
    }
    cut = word.end;
  }
  if (cut) while (cut < following && !/\s/.test(text[cut])) cut += 1;
  return { spoken: text.slice(0, cut), remaining: text.slice(cut) };
}

const EXPLANATIONS = {
  unknown_voice: "The server does not have this voice any more. Choose another one.",
  text_too_long: "This text is too long for one utterance.",
  unspeakable_text: "This voice cannot speak any of this text. Another voice may.",
  out_of_memory: "The server had no memory for this utterance.",
  synthesis_failed: "Synthesis failed.",
  engine_fault: "The engine failed and is being restarted.",
  not_ready: "The voice is not ready.",
  draining: "The server is shutting down.",
  over_capacity: "The server is full.",
};

/** An error of the server as a sentence, with what can be done about it. */
export function explain({ code, message, retryable }) {
  const text = EXPLANATIONS[code] ?? `The server refused: ${message}`;
  return retryable ? `${text} Try again in a moment.` : text;
}
