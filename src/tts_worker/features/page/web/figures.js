/**
 * The figures of the utterance that is shown: when it was heard, what a stop took, and where the time goes.
 *
 * They are folded until the first sample was heard. The figures of an earlier utterance never stand beside a new one.
 */
import { Latencies } from "./latencies.js";
import { RATE_HZ } from "./wire.js";

const NONE = "–";
const MEASURED = ["first-audio", "stop-silent", "stop-answered", "lead"];
/** Parts of a stop over WebRTC, see webrtc/transport.js. */
const PARTS = ["stop-played", "stop-arrived", "network", "server", "jitter", "playout", "device"];
const byId = (id) => document.getElementById(id);

function milliseconds(ms) {
  return ms === null ? NONE : `${Math.round(ms)} ms`;
}

function spokenTime({ playedSamples }) {
  return `${(playedSamples / RATE_HZ).toFixed(1)} s`;
}

export class Figures {
  #panel = byId("figures-panel");
  #latencies = new Latencies(byId("latencies"));
  #wasOpened = false;

  /** Nothing was measured: a new utterance or text, or another transport. */
  clear() {
    for (const id of [...MEASURED, ...PARTS]) byId(id).textContent = NONE;
    byId("spoken").textContent = "0.0 s";
    byId("gaps").textContent = "0";
  }

  /** @param {string} state in a word */
  showState(state) {
    byId("state").textContent = state;
  }

  /** @param {{firstAudioMs: number | null, gaps: number}} utterance */
  update({ firstAudioMs, gaps }) {
    byId("first-audio").textContent = milliseconds(firstAudioMs);
    byId("gaps").textContent = gaps;
  }

  /** @param {string} transport its label */
  firstHeard(transport, utterance) {
    this.#latencies.showStart(transport, utterance.times);
    if (this.#wasOpened) return;
    this.#wasOpened = true; // from now on the user decides
    this.#panel.open = true;
  }

  /** Every change lays out and paints the page again: ten a second, not one for each of fifty positions. */
  heard(utterance, leadMs) {
    if (spokenTime(utterance) !== byId("spoken").textContent) this.showSpoken(utterance, leadMs);
  }

  showSpoken(utterance, leadMs) {
    byId("spoken").textContent = spokenTime(utterance);
    byId("lead").textContent = milliseconds(leadMs);
  }

  /** @param {string} transport its label */
  stopMeasured(transport, stop) {
    byId("stop-silent").textContent = milliseconds(stop.silentMs);
    byId("stop-answered").textContent = milliseconds(stop.answeredMs);
    this.#latencies.showStop(transport, stop);
  }
}
