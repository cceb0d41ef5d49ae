/**
 * Draws the waveform of the audio that is playing. Decorative: it shows when there is audio and when there is none.
 */
export class Waveform {
  #canvas;
  #samples = new Float32Array(512);
  #frame = 0;
  #reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.#canvas = canvas;
  }

  /** @param {AnalyserNode | null} analyser draw its input; null draws a line at rest */
  watch(analyser) {
    cancelAnimationFrame(this.#frame);
    const still = !analyser || this.#reducedMotion.matches;
    this.#canvas.classList.toggle("still", still); // the style sheet draws the line at rest
    if (still) this.#canvas.width = 0;
    else this.#draw(analyser);
  }

  #draw(analyser) {
    const { width, height } = this.#resize();
    const pen = this.#canvas.getContext("2d");
    analyser.getFloatTimeDomainData(this.#samples);
    pen.clearRect(0, 0, width, height);
    pen.strokeStyle = getComputedStyle(this.#canvas).color;
    pen.lineWidth = 1.5 * devicePixelRatio;
    pen.lineJoin = "round";
    pen.beginPath();
    this.#samples.forEach((sample, i) => {
      const x = i / (this.#samples.length - 1);
      const y = sample * Math.sin(Math.PI * x) ** 0.5; // tapered at both ends
      pen.lineTo(x * width, (0.5 - 0.48 * Math.max(-1, Math.min(1, 1.6 * y))) * height);
    });
    pen.stroke();
    this.#frame = requestAnimationFrame(() => this.#draw(analyser));
  }

  #resize() {
    const width = Math.round(this.#canvas.clientWidth * devicePixelRatio);
    const height = Math.round(this.#canvas.clientHeight * devicePixelRatio);
    if (this.#canvas.width !== width || this.#canvas.height !== height) Object.assign(this.#canvas, { width, height });
    return { width, height };
  }
}
