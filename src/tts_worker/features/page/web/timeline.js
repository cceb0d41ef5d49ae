/**
 * Draws an utterance as it is heard: a waveform that scrolls past the playhead, with the chunks in which it arrived, its
 * words, and the audio that is still to be played. At the end it shows the whole utterance at rest; before the first one,
 * speech that is ready to be heard.
 *
 * Offers: Timeline, which needs a canvas with the custom properties --accent, --text, --text-muted and --danger.
 */
import { PEAK_SAMPLES, TimelineModel } from "./timeline-model.js";
import { RATE_HZ } from "./wire.js";

const WINDOW_SAMPLES = 5 * RATE_HZ;
/** The part of the width that shows what was heard already. */
const PLAYHEAD = 0.72;
/** The playhead moves on between two reports of the player, by at most this much. */
const MAX_EXTRAPOLATION_SAMPLES = RATE_HZ / 20;
const LABEL_PX = 12;
const WORD_GAP_PX = 6;

export class Timeline {
  #canvas;
  #pen;
  #model = new TimelineModel();
  #analyser = null;
  #levels = new Float32Array(PEAK_SAMPLES * 2);
  #heardAtMs = 0;
  #frame = 0;
  #running = false;
  #ready = false; // what is shown can be heard, and was not
  #reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.#canvas = canvas;
    this.#pen = canvas.getContext("2d");
    new ResizeObserver(() => this.#running || this.#draw()).observe(canvas);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
      matchMedia(query).addEventListener("change", () => this.#draw());
    }
  }

  get model() {
    return this.#model;
  }

  /** Show speech that was not heard so far, or nothing. @param {Int16Array} samples */
  showReady(samples = new Int16Array()) {
    this.#model = new TimelineModel();
    this.#model.addAudio(samples, 0);
    this.#model.chunks = [];
    this.#ready = true;
    this.#draw();
  }

  /** A new utterance. `analyser`: an AnalyserNode on the output, read where the audio does not pass through the page. */
  begin(analyser) {
    this.#model = new TimelineModel();
    this.#analyser = analyser;
    this.#heardAtMs = performance.now();
    this.#running = true;
    this.#ready = false;
    cancelAnimationFrame(this.#frame);
    if (this.#reducedMotion.matches) this.#draw();
    else this.#animate();
  }

  /** So many samples were heard. */
  hear(samples) {
    this.#model.hear(samples);
    this.#heardAtMs = performance.now();
  }

  /** The utterance has ended. @param {boolean} cut whether before its end */
  end(cut) {
    if (cut) this.#model.cutSample = this.#model.heardSamples;
    this.#running = false;
    cancelAnimationFrame(this.#frame);
    this.#draw();
  }

  #animate() {
    this.#draw();
    this.#frame = requestAnimationFrame(() => this.#animate());
  }

  /** The position that is heard now: the last report, and the time since. */
  get #headSample() {
    const { heardSamples, receivedSamples, endSample } = this.#model;
    if (!this.#running || !heardSamples) return heardSamples;
    const sinceSamples = ((performance.now() - this.#heardAtMs) * RATE_HZ) / 1000;
    const head = heardSamples + Math.min(MAX_EXTRAPOLATION_SAMPLES, sinceSamples);
    return receivedSamples ? Math.min(head, endSample) : head;
  }

  #draw() {
    const head = this.#headSample;
    if (this.#running && !this.#model.receivedSamples && head) this.#measure(head);
    const view = this.#view(head);
    const style = getComputedStyle(this.#canvas);
    const color = (name) => style.getPropertyValue(name).trim();
    this.#pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    this.#pen.clearRect(0, 0, view.width, view.height);
    this.#pen.font = `${LABEL_PX}px ${style.fontFamily}`;
    this.#drawLead(view, head, color("--accent"));
    this.#drawWave(view, head, color("--accent"), color(this.#ready ? "--ready" : "--text-muted"));
    this.#drawChunks(view, color("--text-muted"));
    this.#drawWords(view, head, color("--text"), color("--text-muted"));
    const { cutSample } = this.#model;
    if (cutSample !== null) this.#drawLine(view, cutSample, color("--danger"));
    else if (this.#running) this.#drawLine(view, head, color("--accent"));
  }

  /** The size in CSS pixels, and how samples become x positions: past the playhead while it runs, else all of it. */
  #view(head) {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const [pixelWidth, pixelHeight] = [width, height].map((it) => Math.round(it * devicePixelRatio));
    if (this.#canvas.width !== pixelWidth) this.#canvas.width = pixelWidth;
    if (this.#canvas.height !== pixelHeight) this.#canvas.height = pixelHeight;
    const scrolling = this.#running && !this.#reducedMotion.matches;
    const shownSamples = scrolling ? WINDOW_SAMPLES : Math.max(WINDOW_SAMPLES / 2, this.#model.endSample);
    const scale = width / shownSamples;
    const first = scrolling ? head - (PLAYHEAD * width) / scale : 0;
    const waveHeight = height - 2 * LABEL_PX;
    return { width, height, waveHeight, first, scale, x: (sample) => (sample - first) * scale };
  }

  #drawLead({ x, waveHeight, width }, head, accent) {
    const from = x(head);
    const to = Math.min(width, x(this.#model.receivedSamples));
    if (to <= from || !this.#running) return;
    this.#pen.globalAlpha = 0.12;
    this.#pen.fillStyle = accent;
    this.#pen.fillRect(from, 0, to - from, waveHeight);
    this.#pen.globalAlpha = 1;
  }

  #drawWave({ x, first, scale, width, waveHeight }, head, accent, muted) {
    const step = Math.max(1, Math.round(2.5 / (PEAK_SAMPLES * scale))); // peaks for each bar, so that bars stay apart
    const bar = Math.max(1, PEAK_SAMPLES * step * scale - 1);
    const begin = Math.max(0, Math.floor(first / (PEAK_SAMPLES * step)) * step);
    const { peaks } = this.#model;
    this.#pen.fillStyle = muted;
    this.#pen.fillRect(0, waveHeight / 2 - 0.5, width, 1);
    for (let i = begin; i < peaks.length && x(i * PEAK_SAMPLES) < width; i += step) {
      const level = Math.max(...peaks.slice(i, i + step));
      const height = Math.max(1, Math.min(1, 1.25 * level ** 0.8) * (waveHeight - 6));
      this.#pen.fillStyle = i * PEAK_SAMPLES < head ? accent : muted;
      this.#pen.fillRect(x(i * PEAK_SAMPLES), (waveHeight - height) / 2, bar, height);
    }
  }

  /** Ticks where audio arrived after a wait. */
  #drawChunks({ x, first, scale, width, waveHeight }, muted) {
    if (RATE_HZ * 0.02 * scale < 2) return; // a long utterance at rest: the ticks would be a gray bar
    this.#pen.fillStyle = muted;
    for (const sample of this.#model.chunks) {
      if (sample >= first && x(sample) < width) this.#pen.fillRect(x(sample), waveHeight - 4, 1, 4);
    }
  }

  #drawWords({ x, width, waveHeight, height }, head, text, muted) {
    let free = -Infinity; // labels that would overlap the one before are left out
    this.#pen.textBaseline = "bottom";
    for (const word of this.#model.words) {
      const at = x(word.startSample);
      if (at > width) break;
      if (at < -width) continue;
      this.#pen.fillStyle = word.startSample <= head ? text : muted;
      this.#pen.fillRect(at, waveHeight, 1, 5);
      if (at < free) continue;
      this.#pen.fillText(word.text, at, height);
      free = at + this.#pen.measureText(word.text).width + WORD_GAP_PX;
    }
  }

  #drawLine({ x, height }, sample, color) {
    this.#pen.fillStyle = color;
    this.#pen.fillRect(Math.round(x(sample)) - 1, 0, 2, height - LABEL_PX);
  }

  #measure(head) {
    if (!this.#analyser) return;
    this.#analyser.getFloatTimeDomainData(this.#levels);
    const loudest = this.#levels.reduce((most, level) => Math.max(most, Math.abs(level)), 0);
    this.#model.setPeak(Math.floor(head), loudest);
    this.#model.setPeak(Math.max(0, Math.floor(head) - PEAK_SAMPLES), loudest);
  }
}
