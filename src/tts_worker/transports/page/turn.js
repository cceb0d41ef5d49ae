/**
 * One turn: a text, the times of its words, how far it was heard, and what is to be said about its end.
 *
 * Plain book-keeping. The worker counts text in characters (code points), a browser in UTF-16 units; this is the one
 * place where the two meet. It knows neither the network nor the page.
 */

export class Turn {
  words = []; // {start, end, startSample, endSample}: UTF-16 units of `text`, samples of the turn
  heardWords = 0;
  playedSamples = 0;
  firstAudioMs = null;
  gaps = 0;
  paused = false;
  stop = null; // the listener's stop: {atMs, reason, pending, playedSamples, silentMs, answeredMs}
  ending = null; // the worker's last word on it
  rejection = null;
  #chars = 0; // the same place in `text`, counted in characters ...
  #units = 0; // ... and in UTF-16 units

  constructor(number, { text, base, settings, open, askedAtMs }) {
    this.context = `turn-${number}`;
    this.text = text;
    this.base = base;
    this.settings = settings;
    this.open = open;
    this.askedAtMs = askedAtMs;
  }

  /** Take word times from the worker; returns them in this page's units. */
  addWords(words) {
    const added = words.map((word) => ({
      start: this.#toUnits(word.start_char),
      end: this.#toUnits(word.end_char),
      startSample: word.start_sample,
      endSample: word.end_sample,
    }));
    this.words.push(...added);
    return added;
  }

  /** Offsets only ever grow, so the text is walked once. */
  #toUnits(chars) {
    while (this.#chars < chars && this.#units < this.text.length) {
      this.#units += this.text.codePointAt(this.#units) > 0xffff ? 2 : 1;
      this.#chars += 1;
    }
    return this.#units;
  }

  /** The listener has heard this many samples. */
  hear(samples) {
    this.playedSamples = samples;
    while (this.heardWords < this.words.length && this.words[this.heardWords].startSample <= samples) {
      this.heardWords += 1;
    }
  }

  /**
   * What became of it: `kind`, the two halves of the text, and a sentence in plain words.
   * @returns {{kind: string, spoken: string, remaining: string, message: string}}
   */
  outcome() {
    const { ending } = this;
    const complete = ending.type === "done" && !this.stop;
    if (complete && ending.reason === "nothing_to_speak") {
      return { kind: "empty", spoken: "", remaining: this.text, message: "There is nothing here that can be spoken." };
    }
    if (complete) return { kind: "done", spoken: this.text, remaining: "", message: "Finished." };
    // The worker's receipt counts by what it was told; without one, the same rule is applied here.
    const hasReceipt = "text_spoken" in ending && (ending.type === "stopped" || !this.stop);
    const receipt = hasReceipt
      ? { spoken: ending.text_spoken, remaining: ending.text_remaining }
      : localReceipt(this.text, this.words, this.playedSamples);
    if (this.rejection) return { kind: "error", ...receipt, message: explain(this.rejection) };
    return { kind: this.stop ? "stopped" : ending.type, ...receipt, message: this.#explainEnd(receipt) };
  }

  #explainEnd({ spoken, remaining }) {
    const total = characters(spoken + remaining);
    const heard = `${characters(spoken)} of ${total} characters were heard.`;
    switch (this.ending.type) {
      case "lost":
        return `Cut off. ${heard}`;
      case "error":
        return explain(this.ending);
      case "truncated":
        return `The voice ended before the text did. ${heard}`;
    }
    switch (this.ending.reason) {
      case "pause_timeout":
        return `Paused for too long: the worker let it go. ${heard}`;
      case "barge_in":
        return `Interrupted by you. ${heard}`;
      case "drain":
        return `Cut off: the worker is shutting down. ${heard}`;
    }
    return `Stopped. ${heard}`;
  }
}

/** How many characters the text has, as the worker counts them. */
function characters(text) {
  let count = 0;
  for (const _ of text) count += 1;
  return count.toLocaleString("en");
}

/**
 * Where the text is cut, from what was played: a word counts when at least half of it was heard, and takes along
 * what hangs on it up to the next space. The rule of the worker's own receipts, for when none will come.
 */
export function localReceipt(text, words, playedSamples) {
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

const PLAIN_WORDS = {
  unknown_voice: "The worker does not have this voice any more. Choose another one.",
  text_too_long: "This text is too long for one turn.",
  unspeakable_text: "This voice has no sound for any of this text. Another voice may.",
  out_of_memory: "The worker had no room for this turn.",
  synthesis_failed: "The voice failed in this turn.",
  engine_fault: "The voice broke down and is being restarted.",
  not_ready: "The voice is not ready.",
  draining: "The worker is shutting down.",
  over_capacity: "The worker is full.",
};

/** An error of the worker's in plain words, with what can be done. */
export function explain({ code, message, retryable }) {
  const text = PLAIN_WORDS[code] ?? `The worker refused: ${message}`;
  return retryable ? `${text} Try again in a moment.` : text;
}
