/**
 * The page's session with the server: what was requested, what is being heard, and how each utterance ended.
 *
 * It decides; the connection carries messages, the player plays, the view shows. One utterance at a time is in progress:
 * the next one waits until the server has reported the end of this one, so every sample belongs to a known utterance.
 * A stop silences the player first and then tells the server. It does not know the elements of the page.
 */
import { NOT_STARTED } from "./audio-output.js";
import { Connection } from "./connection.js";
import { Utterance } from "./utterance.js";
import * as wire from "./wire.js";

export class SpeechSession {
  #view;
  #player;
  #connection;
  #utterance = null; // the one in progress
  #queue = []; // requests that wait for the connection or for the utterance in progress
  #endedAtMs = 0; // when the previous utterance ended
  #utterances = 0;
  #waitsForOutput = false; // the user was told that the audio output has not started

  /**
   * @param {{changed(): void, began(utterance: Utterance): void,
   *   audio(utterance: Utterance, pcm: ArrayBuffer): void, firstHeard(utterance: Utterance): void, words(utterance: Utterance, words: object[]): void,
   *   heard(utterance: Utterance): void, stopMeasured(utterance: Utterance, stop: object): void,
   *   finished(utterance: Utterance, outcome: object): void, problem(text: string): void,
   *   connection(state: string, problem: object | null): void}} view
   * @param {(listener: object) => object} createPlayer a Player (player.js) or a TrackPlayer (webrtc/track-player.js)
   * @param {(handlers: object) => object} openTransport see connection.js
   */
  constructor(view, createPlayer, openTransport) {
    this.#view = view;
    this.#player = createPlayer({
      first: (atMs) => this.#onFirst(atMs),
      position: (playedSamples) => this.#onPosition(playedSamples),
      underrun: () => this.#onUnderrun(),
      ended: (playedSamples) => this.#onPlayedAll(playedSamples),
      interrupted: () => this.#onInterrupted(),
      notStarted: () => this.#onNotStarted(),
    });
    this.#connection = new Connection(
      {
        state: (state, problem) => this.#onConnectionState(state, problem),
        message: (message) => this.#onMessage(message),
        audio: (pcm) => this.#onAudio(pcm),
      },
      openTransport,
    );
  }

  // -- commands of the user ------------------------------------------------------------------------------------------

  connect() {
    this.#connection.open();
  }

  /** The page is being left, or another transport was chosen. `connect` opens it again. */
  close() {
    this.stop();
    this.#connection.close();
    this.#lose();
  }

  /** Start the audio output ahead of time, on the first click or key of a visit. */
  prepareAudio() {
    this.#player.open().catch(() => {}); // `say` reports it
  }

  /** @returns {"idle" | "waiting" | "requested" | "speaking" | "writing" | "paused" | "stopping"} */
  get state() {
    if (!this.#utterance) return this.#queue.length ? "waiting" : "idle";
    if (this.#utterance.stop) return "stopping";
    if (this.#utterance.paused) return "paused";
    if (this.#utterance.firstAudioMs === null) return "requested";
    return this.#utterance.awaitsText ? "writing" : "speaking";
  }

  get analyser() {
    return this.#player.analyser;
  }

  /** Speak `text` instead of the current utterance. `base`: its offset in the text field. */
  say(text, base, settings) {
    this.stop();
    this.#request({ text, base, settings, open: false, askedAtMs: Date.now() });
  }

  /** Append to the text being written, or begin one; it is spoken as soon as there is enough of it. */
  append(text, base, settings) {
    const last = this.#queue.at(-1);
    if (last?.open) {
      last.text += text;
    } else if (!last && this.#utterance?.open && !this.#utterance.stop) {
      this.#utterance.text += text;
      this.#sendText(this.#utterance, text);
    } else {
      this.#request({ text, base, settings, open: true, askedAtMs: Date.now() });
    }
  }

  /** The text being written is complete. */
  endText() {
    const last = this.#queue.at(-1);
    if (last) {
      last.open = false;
    } else if (this.#utterance?.open && !this.#utterance.stop) {
      this.#utterance.open = false;
      this.#connection.send(wire.end(this.#utterance.context));
      this.#view.changed();
    }
  }

  /** Whether text can be appended to an utterance that is being written. */
  get writing() {
    return (this.#queue.at(-1) ?? this.#utterance)?.open ?? false;
  }

  pause() {
    const utterance = this.#utterance;
    if (!utterance || utterance.stop || utterance.paused) return;
    utterance.paused = true;
    this.#player.pause();
    if (!utterance.ending) this.#connection.send(wire.pause());
    this.#view.changed();
  }

  resume() {
    const utterance = this.#utterance;
    if (!utterance || utterance.stop || !utterance.paused) return;
    utterance.paused = false;
    this.#player.resume();
    if (!utterance.ending) this.#connection.send(wire.resume());
    this.#view.changed();
  }

  /**
   * Silence the current utterance and drop all requests.
   * @param {string} reason for the playback report: "stop", or "barge_in" when the user spoke
   * @param {number} atMs when the click or the user's speech began
   */
  stop(reason = "stop", atMs = Date.now()) {
    this.#queue = [];
    const utterance = this.#utterance;
    if (utterance && !utterance.stop) {
      utterance.stop = { atMs, reason, pending: false, playedSamples: null, silentMs: null, answeredMs: null };
      this.#cut(utterance);
    }
    this.#view.changed();
  }

  // -- utterances ----------------------------------------------------------------------------------------------------

  #request(request) {
    this.#queue.push(request);
    this.#openAudio();
    this.#connection.open();
    this.#next();
    this.#view.changed();
  }

  #openAudio() {
    this.#player.open().catch((error) => {
      this.#view.problem(error.message);
      this.stop();
    });
  }

  #next() {
    if (this.#utterance || !this.#queue.length || !this.#connection.ready) return;
    const request = this.#queue.shift();
    this.#utterances += 1;
    const utterance = new Utterance(this.#utterances, request);
    // Typed text that waited for the previous utterance could not be heard earlier.
    if (request.open) utterance.askedAtMs = Math.max(utterance.askedAtMs, this.#endedAtMs);
    utterance.times.askedMs = utterance.askedAtMs;
    this.#utterance = utterance;
    this.#player.begin();
    this.#connection.send(wire.start(utterance.settings));
    this.#sendText(utterance, utterance.text);
    if (!utterance.open) this.#connection.send(wire.end(utterance.context));
    utterance.times.sentMs = Date.now();
    this.#view.began(utterance);
  }

  #sendText(utterance, text) {
    for (const message of wire.texts(text, utterance.context)) this.#connection.send(message);
  }

  async #cut(utterance) {
    const { playedSamples, silent } = await this.#player.stop();
    utterance.stop.playedSamples = playedSamples;
    utterance.playedSamples = playedSamples;
    if (!utterance.ending) {
      utterance.stop.pending = true;
      this.#connection.send(wire.stop(utterance.stop.reason, playedSamples, utterance.number));
    }
    silent.then((atMs) => {
      utterance.stop.silentMs = Math.max(0, atMs - utterance.stop.atMs) + this.#player.outputLatencyMs;
      this.#view.stopMeasured(utterance, utterance.stop);
    });
    this.#finishStop(utterance);
  }

  /** Not before the server has answered: its answer would be taken for one to the next utterance. */
  #finishStop(utterance) {
    if (utterance.ending && !utterance.stop.pending && utterance.stop.playedSamples !== null) this.#finish(utterance);
  }

  /** The server reported the end of the utterance, or never will. */
  #end(ending) {
    const utterance = this.#utterance;
    if (utterance.ending) return;
    utterance.ending = ending;
    utterance.open = false;
    if (utterance.stop) {
      this.#finishStop(utterance);
    } else if (ending.type === "stopped") {
      this.stop(); // the server ended it, after a long pause
    } else {
      this.#player.end(); // audio that has arrived is still played
    }
  }

  #finish(utterance) {
    if (this.#utterance !== utterance) return;
    this.#utterance = null;
    this.#endedAtMs = Date.now();
    this.#view.finished(utterance, utterance.outcome());
    this.#next();
    this.#view.changed();
  }

  // -- events of the player ------------------------------------------------------------------------------------------

  #onFirst(atMs) {
    const utterance = this.#utterance;
    if (this.#waitsForOutput) this.#view.problem("");
    this.#waitsForOutput = false;
    utterance.firstAudioMs = Math.max(0, atMs - utterance.askedAtMs) + this.#player.outputLatencyMs;
    utterance.times.heardMs = atMs + this.#player.outputLatencyMs;
    this.#view.firstHeard(utterance);
    this.#view.changed();
  }

  #onPosition(playedSamples) {
    const utterance = this.#utterance;
    // Should the pause time out, the server's report knows what was heard.
    if (utterance.paused && !utterance.ending) this.#connection.send(wire.played(playedSamples, utterance.number));
    const awaitedText = utterance.awaitsText;
    utterance.render(playedSamples);
    if (utterance.awaitsText !== awaitedText) this.#view.changed();
    // Rendered now; heard after the latency of the audio output.
    setTimeout(() => {
      if (utterance !== this.#utterance || utterance.stop) return;
      utterance.hear(playedSamples);
      this.#view.heard(utterance);
    }, this.#player.outputLatencyMs);
  }

  #onUnderrun() {
    // While text is still being written, a gap is due to the writer.
    if (this.#utterance.open) this.#utterance.runDry();
    else this.#utterance.gaps += 1;
    this.#view.changed();
  }

  #onPlayedAll(playedSamples) {
    const utterance = this.#utterance;
    setTimeout(() => {
      if (utterance !== this.#utterance || utterance.stop) return;
      utterance.hear(playedSamples);
      this.#view.heard(utterance);
      this.#finish(utterance);
    }, this.#player.outputLatencyMs);
  }

  #onInterrupted() {
    if (this.#utterance.paused) return;
    this.pause();
    this.#view.problem("The browser suspended the audio. Press Resume to continue.");
  }

  #onNotStarted() {
    this.#waitsForOutput = true;
    this.#view.problem(NOT_STARTED);
  }

  // -- events of the server ------------------------------------------------------------------------------------------

  #onConnectionState(state, problem) {
    if (problem) this.#lose();
    this.#view.connection(state, problem);
    if (state === "ready") this.#next();
    this.#view.changed();
  }

  /** Without a connection no request is repeated later, and the utterance in progress has no answer to wait for. */
  #lose() {
    this.#queue = [];
    const utterance = this.#utterance;
    if (!utterance) return;
    if (utterance.stop) utterance.stop.pending = false;
    this.#end({ type: "lost" });
    if (utterance.stop) this.#finishStop(utterance);
  }

  #onAudio(pcm) {
    const utterance = this.#utterance;
    if (!utterance || utterance.stop) return;
    utterance.times.firstFrameMs ??= Date.now();
    this.#view.audio(utterance, pcm);
    this.#player.push(pcm);
  }

  #onMessage(message) {
    const utterance = this.#utterance;
    switch (message.type) {
      case "ready":
        if (!wire.isPlayable(message)) {
          this.#view.problem("The server sends audio in a format that this page does not play.");
          this.stop();
        }
        break;
      case "started":
        if (!utterance) break;
        utterance.number = message.utterance;
        utterance.times.acceptedMs ??= Date.now();
        break;
      case "words":
        // Sent just before the audio of the word, which does not pass through the page on a WebRTC track.
        if (utterance) utterance.times.firstFrameMs ??= Date.now();
        if (utterance && !utterance.stop) {
          this.#view.words(utterance, utterance.addWords(message.words, message.skipped));
        }
        break;
      case "stopped":
        if (utterance) this.#onStopped(utterance, message);
        break;
      case "done":
      case "truncated":
      case "error":
        if (utterance) this.#end(message);
        break;
      case "rejected":
        this.#onRejected(message);
        break;
    }
  }

  #onStopped(utterance, message) {
    // Not every `stopped` answers this page: the server also stops by itself, after a long pause or when it shuts down.
    if (utterance.stop?.pending && (!message.applied || message.reason === utterance.stop.reason)) {
      utterance.stop.pending = false;
      utterance.stop.answeredMs = Date.now() - utterance.stop.atMs;
      this.#view.stopMeasured(utterance, utterance.stop);
    }
    this.#end(message.applied ? message : { type: "done" }); // nothing to stop: all of it had been sent
    if (utterance === this.#utterance) this.#finishStop(utterance);
  }

  #onRejected(message) {
    const utterance = this.#utterance;
    // Without a command: the server could not parse the message, so its effect will not happen.
    if (utterance && [null, "start", "text", "end"].includes(message.command)) {
      utterance.rejection ??= message;
      this.stop();
    } else {
      this.#view.problem(`The server refused: ${message.message}`);
    }
  }
}
