/**
 * The messages that the page sends on `/v1/stream` and on the WebRTC data channel. The full list is in docs/protocol.md.
 */

export const RATE_HZ = 24000;

/** Audio sent ahead of playback: it covers a busy moment of the page, and a stop discards it at once. */
const LEAD_MS = 250;
/** A person reads, thinks and types slowly. The limits of the server's settings count if they are shorter. */
const PAUSE_TIMEOUT_S = 600;
const TEXT_IDLE_TIMEOUT_S = 3600;
/** Text is sent in messages of at most this size: the server limits a message, not an utterance. */
const MESSAGE_CHARS = 16000;

/**
 * The options of the next utterance.
 * @param {{voice: string | null, speed: number, seed: number, flush_after_ms?: number}} settings
 */
export function start(settings) {
  return {
    type: "start",
    ...settings,
    lead_ms: LEAD_MS,
    pause_timeout_s: PAUSE_TIMEOUT_S,
    text_idle_timeout_s: TEXT_IDLE_TIMEOUT_S,
  };
}

/** Text of the utterance that the page calls `context`, in as many messages as needed. */
export function* texts(text, context) {
  for (let at = 0; at < text.length; at += MESSAGE_CHARS) {
    yield { type: "text", text: text.slice(at, at + MESSAGE_CHARS), context };
  }
}

export const end = (context) => ({ type: "end", context });
export const pause = () => ({ type: "pause" });
export const resume = () => ({ type: "resume" });
/** The position in the utterance that the server has numbered; without a number it counts for the current one. */
export const played = (samples, utterance) => ({ type: "played", samples, utterance });
export const stop = (reason, playedSamples, utterance) => ({
  type: "stop",
  reason,
  played_samples: playedSamples,
  utterance,
});

/** Whether this page can play the format that the server announced in `ready`. */
export function isPlayable(ready) {
  return ready.sample_rate === RATE_HZ && ready.format === "pcm_s16le" && ready.channels === 1;
}
