/**
 * The page's side of a conversation: plays the answers, reports how far it has played, and passes on what the user says.
 *
 * The server decides (features/agent/conversation.py). Only silence does not wait for it: the user's voice rests the
 * playback at once, a click or typed text ends it. It does not know the elements of the page.
 *
 * It remembers the turns, of an answer what was heard, so that a new connection continues the conversation.
 */
import { NOT_STARTED } from "../audio-output.js";
import { Connection } from "../connection.js";
import { Player } from "../player.js";
import { localReport, toUnits, Utterance, withoutSkipped } from "../utterance.js";
import { isPlayable } from "../wire.js";
import { agentTransport } from "./socket.js";

/** The playback position is reported this often, and when playback rests. */
const REPORT_SAMPLES = 2400;
/** So much of a conversation is sent to a new connection: the last turns, in characters and in number. */
const MAX_REMEMBERED_CHARS = 50_000;
const MAX_REMEMBERED_TURNS = 150;

export class AgentSession {
  #view;
  #player;
  #connection;
  #phase = "listening";
  #utterance = null; // the speech of the answer in progress
  #playing = false; // its audio is with the player
  #reportedSamples = 0;
  #resting = false; // the player is paused
  #askedAtMs = 0;
  #history = []; // what the model was sent last
  #turns = []; // {turn, role, text}: what was said, and heard
  #voice = null; // that the user has chosen
  #voiceAtMs = null; // when the user's voice began, while its effect is measured

  /**
   * @param {{connection(state: string, problem: object | null): void, ready(message: object, continues: boolean): void,
   *   phase(phase: string): void, user(turn: number, text: string): void, asked(turn: number, messages: object[]): void,
   *   answer(turn: number, text: string): void, words(turn: number, words: object[]): void,
   *   heard(turn: number, words: number): void, settled(turn: number, outcome: object): void,
   *   silentAfter(ms: number): void, answeredAfter(ms: number): void, problem(text: string): void}} view
   */
  constructor(view) {
    this.#view = view;
    this.#player = new Player({
      first: (atMs) => view.answeredAfter(Math.max(0, atMs - this.#askedAtMs) + this.#player.outputLatencyMs),
      position: (playedSamples) => this.#onPosition(playedSamples),
      underrun() {},
      ended: (playedSamples) => this.#onPlayedAll(playedSamples),
      interrupted: () => view.problem("The browser suspended the audio. Send something to continue."),
      notStarted: () => view.problem(NOT_STARTED),
    });
    this.#connection = new Connection(
      {
        state: (state, problem) => this.#onConnection(state, problem),
        message: (message) => this.#onMessage(message),
        audio: (pcm) => {
          if (this.#playing) this.#player.push(pcm);
        },
      },
      agentTransport(() => this.#voice),
    );
  }

  connect() {
    this.#connection.open();
  }

  close() {
    this.#lose();
    this.#connection.close();
  }

  /** Begin another conversation. */
  restart() {
    this.close();
    this.#turns = [];
    this.connect();
  }

  /** Continue with another voice: an answer in progress ends. @param {string} voice */
  use(voice) {
    this.close();
    this.#voice = voice;
    this.connect();
  }

  /** An AnalyserNode on the output, or null. */
  get analyser() {
    return this.#player.analyser;
  }

  get phase() {
    return this.#phase;
  }

  /** Start the audio output; call it from a click or a key. */
  prepareAudio() {
    this.#player.open().catch((error) => this.#view.problem(error.message));
  }

  /** The user has typed this. */
  async say(text) {
    const position = await this.#silence();
    this.#connection.send({ type: "say", text, ...position });
  }

  /** End the answer. */
  async interrupt() {
    const position = await this.#silence();
    this.#connection.send({ type: "interrupt", ...position });
  }

  /** The user's voice begins, at this time, or ends. */
  voice(active, sampleRate, atMs) {
    if (active && (this.#phase === "thinking" || this.#phase === "speaking")) {
      this.#rest();
      if (this.#playing) this.#voiceAtMs = atMs;
    }
    const message = { type: "speech", active, ...(active && { sample_rate: sampleRate }) };
    const utterance = this.#utterance;
    this.#connection.send({ ...message, ...(utterance && { turn: utterance.turn, played_samples: utterance.playedSamples }) });
  }

  /** Audio of the user's voice, for a server that recognizes speech. */
  audio(pcm) {
    this.#connection.send(pcm);
  }

  /** Words that the browser recognized. Final without words: it was no speech. */
  words(text, final) {
    this.#connection.send({ type: "transcript", text, final });
  }

  // -- playback ------------------------------------------------------------------------------------------------------

  #rest() {
    if (this.#resting) return;
    this.#resting = true;
    this.#player.pause();
  }

  #wake() {
    if (!this.#resting) return;
    this.#resting = false;
    this.#player.resume();
  }

  /** @returns {Promise<object>} the exact position at which the answer was cut, as fields of a message */
  async #silence() {
    if (!this.#playing) return {};
    this.#playing = false;
    const turn = this.#utterance?.turn;
    const { playedSamples } = await this.#player.stop();
    return { turn, played_samples: playedSamples };
  }

  #onPosition(playedSamples) {
    const utterance = this.#utterance;
    if (!utterance) return;
    utterance.playedSamples = playedSamples;
    if (this.#resting && this.#voiceAtMs !== null) {
      this.#view.silentAfter(Math.max(0, Date.now() - this.#voiceAtMs) + this.#player.outputLatencyMs);
      this.#voiceAtMs = null;
    }
    if (this.#resting || playedSamples - this.#reportedSamples >= REPORT_SAMPLES) {
      this.#reportedSamples = playedSamples;
      this.#connection.send({ type: "playback", turn: utterance.turn, samples: playedSamples });
    }
    this.#showHeard(utterance, playedSamples);
  }

  #onPlayedAll(playedSamples) {
    const utterance = this.#utterance;
    this.#playing = false;
    if (!utterance) return;
    this.#showHeard(utterance, playedSamples);
    setTimeout(() => {
      if (utterance !== this.#utterance) return;
      this.#connection.send({ type: "playback", turn: utterance.turn, samples: playedSamples, complete: true });
    }, this.#player.outputLatencyMs);
  }

  /** Rendered now; heard after the latency of the audio output. */
  #showHeard(utterance, playedSamples) {
    setTimeout(() => {
      if (utterance !== this.#utterance) return;
      utterance.hear(playedSamples);
      this.#view.heard(utterance.turn, utterance.heardWords);
    }, this.#player.outputLatencyMs);
  }

  // -- events of the server ------------------------------------------------------------------------------------------

  #onConnection(state, problem) {
    if (problem) this.#lose();
    this.#view.connection(state, problem);
  }

  /** Nothing more is heard of the answer in progress, and no report of the server will come. */
  #lose() {
    const utterance = this.#utterance;
    this.#utterance = null;
    this.#silence();
    if (utterance) {
      const { spoken: heard, remaining: unheard } = localReport(utterance.text, utterance.words, utterance.playedSamples);
      const skipped = utterance.skipped.filter(({ start }) => start < heard.length);
      this.#settle(utterance.turn, { heard, unheard, skipped });
    }
    this.#setPhase("listening");
  }

  #settle(turn, outcome) {
    const text = withoutSkipped(outcome.heard, outcome.skipped).trim();
    if (text) this.#turns.push({ turn, role: "assistant", text });
    this.#view.settled(turn, outcome);
  }

  /** The last turns, as a new connection takes them. */
  #remembered() {
    let chars = 0;
    const last = this.#turns.slice(-MAX_REMEMBERED_TURNS).reverse();
    return last.filter(({ text }) => (chars += text.length) <= MAX_REMEMBERED_CHARS).reverse();
  }

  #setPhase(phase) {
    this.#phase = phase;
    if (phase === "held") this.#rest();
    else this.#wake();
    this.#view.phase(phase);
  }

  #onMessage(message) {
    switch (message.type) {
      case "ready":
        if (!isPlayable(message)) this.#view.problem("The server sends audio in a format that this page does not play.");
        this.#utterance = null;
        this.#history = [];
        this.#setPhase("listening");
        if (this.#turns.length) this.#connection.send({ type: "resume", turns: this.#remembered() });
        this.#view.ready(message, this.#turns.length > 0);
        break;
      case "phase":
        this.#setPhase(message.phase);
        break;
      case "user":
        if (message.turn) this.#turns.push({ turn: message.turn, role: "user", text: message.text });
        this.#view.user(message.turn, message.text);
        break;
      case "asked":
        this.#askedAtMs = Date.now();
        this.#utterance = this.#newUtterance(message.turn);
        this.#history.splice(message.kept, message.removed);
        this.#history.push(...message.messages);
        this.#view.asked(message.turn, this.#history);
        break;
      case "answer":
        if (this.#utterance?.turn === message.turn) this.#utterance.text += message.text;
        this.#view.answer(message.turn, message.text);
        break;
      case "speaking":
        this.#playing = true;
        this.#reportedSamples = 0;
        this.#resting = false;
        this.#player.begin();
        if (this.#phase === "held") this.#rest();
        break;
      case "words":
        if (this.#utterance?.turn === message.turn) {
          this.#view.words(message.turn, this.#utterance.addWords(message.words, message.skipped));
        }
        break;
      case "sent":
        if (this.#playing) this.#player.end();
        break;
      case "cut":
        this.#silence();
        break;
      case "settled":
        if (this.#utterance?.turn === message.turn) this.#utterance = null;
        this.#settle(message.turn, { ...message, skipped: toUnits(message.heard, message.skipped) });
        break;
      case "problem":
        this.#view.problem(`${message.message.charAt(0).toUpperCase()}${message.message.slice(1)}.`);
        break;
    }
  }

  #newUtterance(turn) {
    const utterance = new Utterance(turn, { text: "", base: 0, settings: {}, open: true, askedAtMs: this.#askedAtMs });
    utterance.turn = turn;
    return utterance;
  }
}
