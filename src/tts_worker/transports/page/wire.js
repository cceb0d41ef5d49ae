/**
 * What the page says to the worker on `/v1/stream`, as JSON. The worker's own list of messages is wire.py.
 */

export const RATE_HZ = 24000;

/** Sound sent ahead of what is heard: a stop throws it away at once, and it carries over a busy moment. */
const LEAD_MS = 250;
/** Who reads, thinks and types is not in a hurry. */
const PAUSE_TIMEOUT_S = 600;
const TEXT_IDLE_TIMEOUT_S = 3600;
/** Text goes out in messages of this size: the worker bounds a message, not what one may want to hear. */
const MESSAGE_CHARS = 16000;

/** How the next utterance is to be spoken. @param {{voice: string | null, speed: number, seed: number, flush_after_ms?: number}} settings */
export function start(settings) {
  return {
    type: "start",
    ...settings,
    lead_ms: LEAD_MS,
    pause_timeout_s: PAUSE_TIMEOUT_S,
    text_idle_timeout_s: TEXT_IDLE_TIMEOUT_S,
  };
}

/** Text for the utterance that the page calls `context`, in as many messages as it takes. */
export function* texts(text, context) {
  for (let at = 0; at < text.length; at += MESSAGE_CHARS) {
    yield { type: "text", text: text.slice(at, at + MESSAGE_CHARS), context };
  }
}

export const end = (context) => ({ type: "end", context });
export const pause = () => ({ type: "pause" });
export const resume = () => ({ type: "resume" });
export const played = (samples) => ({ type: "played", samples });
export const stop = (reason, playedSamples) => ({ type: "stop", reason, played_samples: playedSamples });

/** Whether this page can play what the worker announced in `ready`. */
export function isPlayable(ready) {
  return ready.sample_rate === RATE_HZ && ready.format === "pcm_s16le" && ready.channels === 1;
}
