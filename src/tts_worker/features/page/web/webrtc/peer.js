/**
 * The WebRTC transport of a connection: audio on a track, the server's protocol as JSON on a data channel.
 *
 * It owns the peer connection from the offer to its end. It does not know the page or what the messages mean.
 */
import { authorization } from "../access.js";
import { problemOf, UNREACHABLE } from "../api.js";

const NO_ROUTE = {
  kind: "refused",
  text: "No WebRTC connection to the server could be made: UDP between the two may be blocked.",
};

export class Peer {
  #handlers;
  #connection = new RTCPeerConnection();
  #channel = this.#connection.createDataChannel("tts");
  #closed = false;
  #markClosed;
  #closing = new Promise((resolve) => (this.#markClosed = resolve));
  #jitterBuffer = { delayS: 0, samples: 0 };

  /**
   * @param {{message(message: object): void, track(stream: MediaStream): void,
   *   closed(end: {reason?: string, problem?: object}): void}} handlers `closed` is called at most once
   */
  constructor(handlers) {
    this.#handlers = handlers;
    const transceiver = this.#connection.addTransceiver("audio", { direction: "recvonly" });
    // The smallest buffer that the browser considers safe: what it holds is heard after a stop.
    transceiver.receiver.jitterBufferTarget = 0;
    this.#connection.ontrack = ({ track, streams }) => handlers.track(streams[0] ?? new MediaStream([track]));
    this.#connection.onconnectionstatechange = () => {
      const { connectionState } = this.#connection;
      if (connectionState === "failed" && this.#channel.readyState === "connecting") this.#end({ problem: NO_ROUTE });
      else if (["failed", "closed"].includes(connectionState)) this.#end({});
    };
    this.#channel.onmessage = ({ data }) => handlers.message(JSON.parse(data));
    this.#channel.onclose = () => this.#end({ reason: "the server ended it" });
  }

  /** Send the offer and apply the answer. A failure is reported through `closed`. */
  async open() {
    try {
      await this.#connection.setLocalDescription();
      await gatheringComplete(this.#connection);
      const { response, answer } = await this.#sendOffer();
      if (this.#closed) return;
      if (response.ok) await this.#connection.setRemoteDescription(answer);
      else this.#end({ problem: problemOf(response.status, answer) });
    } catch (error) {
      const unreachable = error instanceof TypeError; // what fetch rejects with
      this.#end({ problem: unreachable ? UNREACHABLE : { kind: "refused", text: `WebRTC failed: ${error.message}` } });
    }
  }

  async #sendOffer() {
    const { sdp, type } = this.#connection.localDescription;
    const headers = { "Content-Type": "application/json", ...authorization() };
    const response = await fetch("/webrtc/offer", { method: "POST", headers, body: JSON.stringify({ sdp, type }) });
    return { response, answer: await response.json() };
  }

  send(message) {
    if (this.#channel.readyState === "open") this.#channel.send(JSON.stringify(message));
  }

  /**
   * What the browser measured: the round-trip time to the server, and the mean time that audio waited in the jitter buffer
   * since the last call. 0 where it has not measured.
   * @returns {Promise<?{roundTripMs: number, jitterMs: number}>} null once the connection is closed
   */
  async delays() {
    if (this.#closed) return null; // Firefox rejects with an error
    const reports = await Promise.race([this.#connection.getStats(), this.#closing]); // or never answers
    if (this.#closed) return null;
    const delays = { roundTripMs: 0, jitterMs: 0 };
    for (const report of reports.values()) {
      if (report.type === "inbound-rtp") delays.jitterMs = this.#jitterSince(report);
      else if (report.type === "candidate-pair" && report.nominated) {
        delays.roundTripMs = (report.currentRoundTripTime ?? 0) * 1000;
      }
    }
    return delays;
  }

  #jitterSince({ jitterBufferDelay: delayS, jitterBufferEmittedCount: samples }) {
    const before = this.#jitterBuffer;
    this.#jitterBuffer = { delayS, samples };
    return samples > before.samples ? ((delayS - before.delayS) / (samples - before.samples)) * 1000 : 0;
  }

  close() {
    this.#closed = true;
    this.#markClosed();
    this.#connection.close();
  }

  #end(end) {
    if (this.#closed) return;
    this.close();
    this.#handlers.closed(end);
  }
}

/** There is no trickle ICE: the offer holds all of the browser's addresses. */
async function gatheringComplete(connection) {
  if (connection.iceGatheringState === "complete") return;
  await new Promise((resolve) => {
    connection.onicegatheringstatechange = () => connection.iceGatheringState === "complete" && resolve();
  });
}
