/**
 * One listener's conversation with the worker: what is asked for, what is being heard, what became of it.
 *
 * It decides; the connection carries, the player plays, the view shows. One turn at a time is on the wire: the next one
 * waits until the worker has said how this one ended, so there is never a doubt to which turn a sample belongs.
 * A stop silences the player first and tells the worker then. It knows nothing of the page's elements.
 */
import { Connection } from "./connection.js";
import { Player } from "./player.js";
import { Turn } from "./turn.js";
import * as wire from "./wire.js";

export class Conversation {
  #view;
  #player;
  #connection;
  #turn = null; // the one being said or heard
  #queue = []; // requests that wait: for the connection, or for the turn before them
  #freeAtMs = 0; // when the turn before ended
  #turns = 0;

  /**
   * @param {{changed(): void, began(turn: Turn): void, words(turn: Turn, words: object[]): void,
   *   heard(turn: Turn): void, stopMeasured(stop: object): void, finished(turn: Turn, outcome: object): void,
   *   problem(text: string): void, connection(state: string, problem?: object): void}} view
   */
  constructor(view) {
    this.#view = view;
    this.#player = new Player({
      first: (atMs) => this.#onFirst(atMs),
      position: (playedSamples) => this.#onPosition(playedSamples),
      dry: () => this.#onDry(),
      ended: (playedSamples) => this.#onSoundOver(playedSamples),
      interrupted: () => this.#onInterrupted(),
    });
    this.#connection = new Connection({
      connecting: () => this.#view.connection("connecting"),
      ready: () => this.#onConnected(),
      offline: (problem) => this.#onOffline(problem),
      message: (message) => this.#onMessage(message),
      sound: (pcm) => this.#onSound(pcm),
    });
  }

  // -- what a listener can do ----------------------------------------------------------------------------------------

  connect() {
    this.#connection.open();
  }

  /** Bring the sound up ahead of time, from the first click or key of a visit. */
  prepareSound() {
    this.#player.open().catch(() => {}); // whoever wants to speak hears of it
  }

  /** @returns {"idle" | "waiting" | "asking" | "speaking" | "paused" | "stopping"} */
  get state() {
    if (!this.#turn) return this.#queue.length ? "waiting" : "idle";
    if (this.#turn.stop) return "stopping";
    if (this.#turn.paused) return "paused";
    return this.#turn.firstAudioMs === null ? "asking" : "speaking";
  }

  get analyser() {
    return this.#player.analyser;
  }

  /** Say `text` instead of whatever is being said. `base`: where it begins in the script. */
  say(text, base, settings) {
    this.stop();
    this.#ask({ text, base, settings, open: false, askedAtMs: Date.now() });
  }

  /** Add to the text being written, or begin one; it is spoken as soon as there is enough of it. */
  append(text, base, settings) {
    const last = this.#queue.at(-1);
    if (last?.open) {
      last.text += text;
    } else if (!last && this.#turn?.open && !this.#turn.stop) {
      this.#turn.text += text;
      this.#sendText(this.#turn, text);
    } else {
      this.#ask({ text, base, settings, open: true, askedAtMs: Date.now() });
    }
  }

  /** The text being written is complete. */
  endText() {
    const last = this.#queue.at(-1);
    if (last) {
      last.open = false;
    } else if (this.#turn?.open && !this.#turn.stop) {
      this.#turn.open = false;
      this.#connection.send(wire.end(this.#turn.context));
    }
  }

  /** Whether text can be added to an utterance that is being written. */
  get writing() {
    return (this.#queue.at(-1) ?? this.#turn)?.open ?? false;
  }

  pause() {
    const turn = this.#turn;
    if (!turn || turn.stop || turn.paused) return;
    turn.paused = true;
    this.#player.pause();
    if (!turn.ending) this.#connection.send(wire.pause());
    this.#view.changed();
  }

  resume() {
    const turn = this.#turn;
    if (!turn || turn.stop || !turn.paused) return;
    turn.paused = false;
    this.#player.resume();
    if (!turn.ending) this.#connection.send(wire.resume());
    this.#view.changed();
  }

  /**
   * Silence, and nothing of what was asked for will come.
   * @param {string} reason for the receipt: "stop", or "barge_in" when the user spoke @param {number} atMs since when
   */
  stop(reason = "stop", atMs = Date.now()) {
    this.#queue = [];
    const turn = this.#turn;
    if (turn && !turn.stop) {
      turn.stop = { atMs, reason, pending: false, playedSamples: null, silentMs: null, answeredMs: null };
      this.#cut(turn);
    }
    this.#view.changed();
  }

  // -- turns ---------------------------------------------------------------------------------------------------------

  #ask(request) {
    this.#queue.push(request);
    this.#openSound();
    this.#connection.open();
    this.#next();
    this.#view.changed();
  }

  #openSound() {
    this.#player.open().catch(() => {
      this.#view.problem("This browser cannot play the sound: it needs an AudioWorklet at 24 kHz.");
      this.stop();
    });
  }

  #next() {
    if (this.#turn || !this.#queue.length || !this.#connection.ready) return;
    const request = this.#queue.shift();
    this.#turns += 1;
    const turn = new Turn(this.#turns, request);
    // Typed text that waited for the turn before it could not be heard earlier.
    if (request.open) turn.askedAtMs = Math.max(turn.askedAtMs, this.#freeAtMs);
    this.#turn = turn;
    this.#player.begin();
    this.#connection.send(wire.start(turn.settings));
    this.#sendText(turn, turn.text);
    if (!turn.open) this.#connection.send(wire.end(turn.context));
    this.#view.began(turn);
  }

  #sendText(turn, text) {
    for (const message of wire.texts(text, turn.context)) this.#connection.send(message);
  }

  async #cut(turn) {
    const { playedSamples, silent } = await this.#player.stop();
    turn.stop.playedSamples = playedSamples;
    turn.playedSamples = playedSamples;
    if (!turn.ending) {
      turn.stop.pending = true;
      this.#connection.send(wire.stop(turn.stop.reason, playedSamples));
    }
    silent.then((atMs) => {
      turn.stop.silentMs = Math.max(0, atMs - turn.stop.atMs) + this.#player.outputLatencyMs;
      this.#view.stopMeasured(turn.stop);
    });
    this.#finishStop(turn);
  }

  /** Not before the worker has answered: else its answer would be taken for one to the next turn. */
  #finishStop(turn) {
    if (turn.ending && !turn.stop.pending && turn.stop.playedSamples !== null) this.#finish(turn);
  }

  /** The worker said how the turn ended, or will never say it. */
  #end(ending) {
    const turn = this.#turn;
    if (turn.ending) return;
    turn.ending = ending;
    turn.open = false;
    if (turn.stop) {
      this.#finishStop(turn);
    } else if (ending.type === "stopped") {
      this.stop(); // the worker ended it by itself, after a long pause
    } else {
      this.#player.end(); // what has arrived is still heard
    }
  }

  #finish(turn) {
    if (this.#turn !== turn) return;
    this.#turn = null;
    this.#freeAtMs = Date.now();
    this.#view.finished(turn, turn.outcome());
    this.#next();
    this.#view.changed();
  }

  // -- from the player -----------------------------------------------------------------------------------------------

  #onFirst(atMs) {
    const turn = this.#turn;
    turn.firstAudioMs = Math.max(0, atMs - turn.askedAtMs) + this.#player.outputLatencyMs;
    this.#view.changed();
  }

  #onPosition(playedSamples) {
    const turn = this.#turn;
    // Should the pause never end, the worker's receipt knows what was heard.
    if (turn.paused && !turn.ending) this.#connection.send(wire.played(playedSamples));
    // Rendered now, heard when it has come through the system's buffers.
    setTimeout(() => {
      if (turn !== this.#turn || turn.stop) return;
      turn.hear(playedSamples);
      this.#view.heard(turn);
    }, this.#player.outputLatencyMs);
  }

  #onDry() {
    // While text is still being written, silence is the writer's.
    if (!this.#turn.open) this.#turn.gaps += 1;
    this.#view.changed();
  }

  #onSoundOver(playedSamples) {
    const turn = this.#turn;
    setTimeout(() => {
      if (turn !== this.#turn || turn.stop) return;
      turn.hear(playedSamples);
      this.#view.heard(turn);
      this.#finish(turn);
    }, this.#player.outputLatencyMs);
  }

  #onInterrupted() {
    if (this.#turn.paused) return;
    this.pause();
    this.#view.problem("The browser took the sound away. Press Resume to go on.");
  }

  // -- from the worker -----------------------------------------------------------------------------------------------

  #onConnected() {
    this.#view.connection("ready");
    this.#next();
  }

  #onOffline(problem) {
    this.#queue = [];
    if (this.#turn?.stop) this.#turn.stop.pending = false;
    if (this.#turn) this.#end({ type: "lost" });
    if (this.#turn?.stop) this.#finishStop(this.#turn);
    this.#view.connection("offline", problem);
    this.#view.changed();
  }

  #onSound(pcm) {
    if (this.#turn && !this.#turn.stop) this.#player.push(pcm);
  }

  #onMessage(message) {
    const turn = this.#turn;
    switch (message.type) {
      case "ready":
        if (!wire.isPlayable(message)) {
          this.#view.problem("The worker sends sound in a form that this page does not play.");
          this.stop();
        }
        break;
      case "words":
        if (turn && !turn.stop) this.#view.words(turn, turn.addWords(message.words));
        break;
      case "stopped":
        if (turn) this.#onStopped(turn, message);
        break;
      case "done":
      case "truncated":
      case "error":
        if (turn) this.#end(message);
        break;
      case "rejected":
        this.#onRejected(message);
        break;
    }
  }

  #onStopped(turn, message) {
    // Not every one answers the listener: the worker also stops by itself, after a long pause or when it shuts down.
    if (turn.stop?.pending && (!message.applied || message.reason === turn.stop.reason)) {
      turn.stop.pending = false;
      turn.stop.answeredMs = Date.now() - turn.stop.atMs;
      this.#view.stopMeasured(turn.stop);
    }
    this.#end(message.applied ? message : { type: "done" }); // nothing to stop: all of it had been sent
    if (turn === this.#turn) this.#finishStop(turn);
  }

  #onRejected(message) {
    const turn = this.#turn;
    // Without a name: the worker could not even read it, and what it was to do is not going to happen.
    if (turn && [null, "start", "text", "end"].includes(message.command)) {
      turn.rejection ??= message;
      this.stop();
    } else {
      this.#view.problem(`The worker refused: ${message.message}`);
    }
  }
}
