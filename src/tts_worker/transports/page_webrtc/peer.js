/**
 * A WebRTC connection to a worker: sound on a track, the worker's protocol on a data channel.
 *
 * Owns the connection from the offer to its end. It must not know the page, nor what the messages mean.
 */

export class Peer {
  #listener;
  #connection = new RTCPeerConnection();
  #channel = this.#connection.createDataChannel("tts");
  #over = false;
  #waited = { s: 0, samples: 0 };

  /**
   * @param {{message(data: object): void, sound(stream: MediaStream): void, lost(reason: string): void}} listener
   */
  constructor(listener) {
    this.#listener = listener;
    const transceiver = this.#connection.addTransceiver("audio", { direction: "recvonly" });
    // Speech that is interrupted is better late by little than never broken; the browser knows how little is safe.
    transceiver.receiver.jitterBufferTarget = 0;
    this.#connection.ontrack = ({ track, streams }) => listener.sound(streams[0] ?? new MediaStream([track]));
    this.#connection.onconnectionstatechange = () => {
      if (["failed", "closed"].includes(this.#connection.connectionState)) this.#lose("The connection was lost.");
    };
    this.#channel.onmessage = ({ data }) => listener.message(JSON.parse(data));
    this.#channel.onclose = () => this.#lose("The worker ended the connection.");
  }

  /** Connect; rejects with an Error that says why not. ``session``: the fields of a ``start`` message. */
  async open(session = {}, key = "") {
    await this.#connection.setLocalDescription();
    await gathered(this.#connection);
    const { sdp, type } = this.#connection.localDescription;
    const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
    const body = JSON.stringify({ sdp, type, session });
    const response = await fetch("/webrtc/offer", { method: "POST", headers, body });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error?.message ?? `The worker answered ${response.status}.`);
    await this.#connection.setRemoteDescription(answer);
  }

  send(message) {
    if (this.#channel.readyState === "open") this.#channel.send(JSON.stringify(message));
  }

  /** How long sound waited in the browser before it was played, in ms on average since the last call; null if none. */
  async jitterMs() {
    for (const report of (await this.#connection.getStats()).values()) {
      if (report.type !== "inbound-rtp") continue;
      const now = { s: report.jitterBufferDelay, samples: report.jitterBufferEmittedCount };
      const before = this.#waited;
      this.#waited = now;
      return now.samples > before.samples ? ((now.s - before.s) / (now.samples - before.samples)) * 1000 : null;
    }
    return null;
  }

  /** How long a packet to the worker and back takes, in ms, as the browser measured it last; null before it has. */
  async roundTripMs() {
    for (const report of (await this.#connection.getStats()).values()) {
      if (report.type === "candidate-pair" && report.nominated && report.currentRoundTripTime !== undefined) {
        return report.currentRoundTripTime * 1000;
      }
    }
    return null;
  }

  close() {
    this.#over = true;
    this.#connection.close();
  }

  #lose(reason) {
    if (this.#over) return;
    this.close();
    this.#listener.lost(reason);
  }
}

/** The offer holds the browser's own addresses; there is no later message to add them. */
async function gathered(connection) {
  if (connection.iceGatheringState === "complete") return;
  await new Promise((resolve) => {
    connection.onicegatheringstatechange = () => connection.iceGatheringState === "complete" && resolve();
  });
}
