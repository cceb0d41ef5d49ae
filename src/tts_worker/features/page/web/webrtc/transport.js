/**
 * WebRTC as a transport of the page: a peer and the player of its track, and the parts of a stop's latency.
 */
import { Peer } from "./peer.js";
import { TrackPlayer } from "./track-player.js";

/** After the server's answer to a stop, stale audio that was on its way has arrived within this time. */
const SETTLED_MS = 400;

const UNSUPPORTED = { kind: "unsupported", text: "This browser does not support WebRTC." };

/** @returns {{createPlayer: Function, openTransport: Function, showStopParts: Function}} for app.js */
export function webRtcTransport() {
  let player = null;
  let peer = null;
  let measuredStop = null; // whose parts are shown

  function openTransport(handlers) {
    if (!globalThis.RTCPeerConnection) {
      setTimeout(() => handlers.closed({ problem: UNSUPPORTED }));
      return { send() {}, close() {} };
    }
    peer = new Peer({
      ...handlers,
      message(message) {
        player.observe(message);
        handlers.message(message);
      },
      track: (stream) => player.play(stream).catch(() => {}), // `open`, at the first click, reports it
    });
    peer.open();
    return peer;
  }

  async function showStopParts(stop) {
    if (stop.silentMs === null || stop.answeredMs === null || stop === measuredStop) return;
    measuredStop = stop;
    const measured = peer;
    await new Promise((resolve) => setTimeout(resolve, SETTLED_MS));
    if (stop !== measuredStop || player.active) return; // newer audio is playing
    const { arrivedMs } = await player.lastLoud();
    const oldAudioMs = Math.max(0, arrivedMs - stop.atMs);
    const delays = await measured.delays();
    if (delays === null) return; // the connection was lost
    const { roundTripMs, jitterMs } = delays;
    show("network", roundTripMs);
    show("server", Math.max(0, stop.answeredMs - roundTripMs));
    show("jitter", jitterMs);
    show("playout", Math.max(0, oldAudioMs - stop.answeredMs - jitterMs));
    show("device", player.outputLatencyMs);
    show("stop-arrived", oldAudioMs);
    show("stop-played", stop.silentMs - player.outputLatencyMs);
  }

  return {
    createPlayer: (listener) => (player = new TrackPlayer(listener)),
    openTransport,
    showStopParts,
  };
}

function show(id, ms) {
  document.getElementById(id).textContent = `${Math.round(ms)} ms`;
}
