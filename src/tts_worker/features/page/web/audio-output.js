/**
 * The audio output of the browser: how it starts, and its latency.
 */

/** After this the user is told that an output which was asked to start has not. */
const START_TIMEOUT_MS = 5000;

export const NOT_STARTED =
  "The browser has not started the audio output. Check that a loudspeaker or headphones are connected.";

/**
 * Firefox can block a page for ever when it reads `outputLatency` on Linux: the page holds the lock of the audio graph
 * while it waits for PulseAudio, which waits for the callback that renders audio, which waits for the lock of the graph.
 * Firefox 153 does, most often in a handler of a message from the audio thread. `getOutputTimestamp` does the same.
 */
const canReadLatency = !/Linux.*Firefox\//.test(navigator.userAgent);

/** From rendering a sample to hearing it, as reported by the browser; 0 where it is not known. */
export function outputLatencyMs(context) {
  return canReadLatency ? (context.outputLatency || 0) * 1000 : 0;
}

/**
 * Start the output of an audio context, from a click or a key, as browsers require. Resolves when it runs.
 * @param {() => void} late called when it has not started in time, for example without an audio device; it may yet
 */
export async function startOutput(context, late) {
  if (context.state === "running") return;
  const timer = setTimeout(late, START_TIMEOUT_MS);
  try {
    await context.resume();
  } finally {
    clearTimeout(timer);
  }
}
