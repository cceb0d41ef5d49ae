/**
 * Shows who speaks: a disc for the user and one for the agent, with rings that follow their loudness.
 *
 * Offers: Stage. The status line says the same in words.
 */

/** A ring falls back over some frames, so that it does not flicker between syllables. */
const DECAY = 0.85;
const LOUD = 0.35; // peak of an output that is as loud as speech gets
const LOUD_DB = 30; // of a voice over the background

export class Stage {
  #discs;
  #analyser;
  #samples = new Float32Array(1024);
  #levels = { user: 0, agent: 0 };
  #userLevel = 0;
  #frame = 0;
  #reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

  /** @param {{user: HTMLElement, agent: HTMLElement}} discs @param {() => AnalyserNode | null} analyser of the output */
  constructor(discs, analyser) {
    this.#discs = discs;
    this.#analyser = analyser;
  }

  /** @param {"user" | "agent" | null} speaker */
  show(speaker) {
    for (const [name, disc] of Object.entries(this.#discs)) disc.classList.toggle("speaks", name === speaker);
    if (speaker && !this.#frame && !this.#reducedMotion.matches) this.#animate();
  }

  /** The user's voice, in dB over the background. */
  hear(aboveDb) {
    this.#userLevel = Math.min(1, Math.max(0, aboveDb) / LOUD_DB);
  }

  #animate() {
    const now = { user: this.#userLevel, agent: this.#agentLevel() };
    let isMoving = false;
    for (const [name, disc] of Object.entries(this.#discs)) {
      const speaks = disc.classList.contains("speaks");
      this.#levels[name] = Math.max(speaks ? now[name] : 0, this.#levels[name] * DECAY);
      disc.style.setProperty("--level", this.#levels[name].toFixed(3));
      isMoving ||= speaks || this.#levels[name] > 0.01;
    }
    this.#frame = isMoving ? requestAnimationFrame(() => this.#animate()) : 0;
  }

  #agentLevel() {
    const analyser = this.#analyser();
    if (!analyser) return 0;
    analyser.getFloatTimeDomainData(this.#samples);
    return Math.min(1, this.#samples.reduce((most, level) => Math.max(most, Math.abs(level)), 0) / LOUD);
  }
}
