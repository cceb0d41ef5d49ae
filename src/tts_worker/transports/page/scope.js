/**
 * Draws the wave that is heard right now. An ornament: it shows that sound flows and that silence is silence.
 */
export class Scope {
  #canvas;
  #samples = new Float32Array(512);
  #frame = 0;
  #calm = matchMedia("(prefers-reduced-motion: reduce)");

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.#canvas = canvas;
  }

  /** @param {AnalyserNode | null} analyser draw what it hears, or come to rest */
  watch(analyser) {
    cancelAnimationFrame(this.#frame);
    const still = !analyser || this.#calm.matches;
    this.#canvas.classList.toggle("still", still); // the style sheet draws the line at rest
    if (still) this.#canvas.width = 0;
    else this.#draw(analyser);
  }

  #draw(analyser) {
    const { width, height } = this.#fit();
    const pen = this.#canvas.getContext("2d");
    analyser.getFloatTimeDomainData(this.#samples);
    pen.clearRect(0, 0, width, height);
    pen.strokeStyle = getComputedStyle(this.#canvas).color;
    pen.lineWidth = 1.5 * devicePixelRatio;
    pen.lineJoin = "round";
    pen.beginPath();
    this.#samples.forEach((sample, i) => {
      const place = i / (this.#samples.length - 1);
      // Thin at both ends, so that the line has no edges.
      const swing = sample * Math.sin(Math.PI * place) ** 0.5;
      pen.lineTo(place * width, (0.5 - 0.48 * Math.max(-1, Math.min(1, 1.6 * swing))) * height);
    });
    pen.stroke();
    this.#frame = requestAnimationFrame(() => this.#draw(analyser));
  }

  #fit() {
    const width = Math.round(this.#canvas.clientWidth * devicePixelRatio);
    const height = Math.round(this.#canvas.clientHeight * devicePixelRatio);
    if (this.#canvas.width !== width || this.#canvas.height !== height) Object.assign(this.#canvas, { width, height });
    return { width, height };
  }
}
