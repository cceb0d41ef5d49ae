/**
 * Shows the connection to the server: its state in a word, what is wrong in a sentence, and the form for the API key.
 */
import { unlock } from "./api.js";

const LABELS = {
  connecting: "Connecting",
  ready: "Connected",
  unresponsive: "Not answering",
  reconnecting: "Reconnecting",
  gone: "Server gone",
  full: "Server full",
  starting: "Server starting",
  draining: "Server shutting down",
  locked: "API key needed",
  refused: "Refused",
  unsupported: "Not available",
};

const byId = (id) => document.getElementById(id);

export class ConnectionView {
  #state = "connecting";
  #problem;
  #field;

  /**
   * @param {{problem(text: string): void, connect(): void, field?: HTMLElement}} listener `field` gets the focus after
   *   the key was accepted
   */
  constructor({ problem, connect, field = byId("text") }) {
    this.#problem = problem;
    this.#field = field;
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#unlock(connect);
    });
  }

  async #unlock(connect) {
    try {
      await unlock(byId("key").value.trim());
    } catch (error) {
      this.#problem(error.message);
      return;
    }
    this.#problem("");
    byId("key").value = "";
    connect();
  }

  get connected() {
    return this.#state === "ready";
  }

  /** Whether the user is asked for a key. */
  get locked() {
    return !byId("key-form").hidden;
  }

  get label() {
    return LABELS[this.#state];
  }

  /** @param {string} state see connection.js @param {{text: string, final: boolean} | null} problem */
  show(state, problem) {
    this.#state = state;
    byId("connection").textContent = this.label;
    byId("connection").dataset.state = state;
    if (this.connected) this.#problem("");
    if (this.connected && this.locked) {
      byId("key-form").hidden = true;
      this.#field.focus();
    }
    if (!problem) return;
    this.#problem(problem.final ? problem.text : `${problem.text} Trying again …`);
    if (state === "locked" && !this.locked) {
      byId("key-form").hidden = false;
      byId("key").focus();
    }
  }
}
