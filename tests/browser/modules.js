// Harness for single modules of the page. The processor of the audio thread is driven quantum by quantum, so that every
// schedule of messages is exact and repeatable.

async function ringAgainstArray(capacitySamples, operations) {
  const { RingBuffer } = await import("/static/ring-buffer.js");
  const ring = new RingBuffer(capacitySamples);
  let model = [];
  let next = 0;
  const wrong = [];
  for (const [name, count] of operations) {
    if (name === "push") {
      const samples = Int16Array.from({ length: count }, () => (next = (next + 1) % 32000));
      ring.push(samples);
      model.push(...samples);
    } else if (name === "shift") {
      for (let i = 0; i < count && model.length; i += 1) {
        if (ring.shift() !== model.shift()) wrong.push("value");
      }
    } else {
      ring.clear();
      model = [];
    }
    if (ring.length !== model.length) wrong.push("length");
  }
  while (model.length) if (ring.shift() !== model.shift()) wrong.push("rest");
  return wrong;
}

let Processor;

async function processorClass() {
  if (Processor) return Processor;
  globalThis.sampleRate = 24000;
  globalThis.AudioWorkletProcessor = class {
    port = { onmessage: null, sent: [], postMessage: (message) => this.port.sent.push(message) };
  };
  globalThis.registerProcessor = (_name, registered) => (Processor = registered);
  await import("/static/player-worklet.js");
  return Processor;
}

// A schedule is a list of ["run", quanta], ["push", samples] or a message. `sample(k)` is the k-th pushed sample.
async function render(schedule, sample) {
  const player = new (await processorClass())();
  const out = [];
  const events = [];
  let pushed = 0;
  for (const step of schedule) {
    if (step[0] === "run") {
      for (let i = 0; i < step[1]; i += 1) {
        const quantum = new Float32Array(128);
        player.process([], [[quantum]]);
        out.push(...quantum);
        events.push(...player.port.sent.splice(0).map((event) => ({ ...event, after: out.length })));
      }
    } else if (step[0] === "push") {
      const pcm = Int16Array.from({ length: step[1] }, () => sample(pushed++));
      player.port.onmessage({ data: { type: "push", pcm: pcm.buffer } });
    } else {
      player.port.onmessage({ data: { type: step[0], ...step[1] } });
    }
    events.push(...player.port.sent.splice(0).map((event) => ({ ...event, after: out.length })));
  }
  return { out, events };
}

const LEVEL = 16384;
const renderLevel = (schedule) => render(schedule, () => LEVEL);
const renderCount = (schedule) => render(schedule, (k) => (k % 32000) + 1);

async function detectSpeech(levels) {
  const { VoiceActivityDetector } = await import("/static/vad.js");
  const vad = new VoiceActivityDetector();
  return levels.map((level, i) => [i + 1, vad.process(level)]).filter(([, change]) => change);
}

async function heardWords(text, words, places) {
  const { Utterance } = await import("/static/utterance.js");
  const utterance = new Utterance(1, { text, base: 0, settings: {}, open: false, askedAtMs: 0 });
  utterance.addWords(words.map(([start_char, end_char, start_sample, end_sample]) => ({ start_char, end_char, start_sample, end_sample })));
  return places.map((samples) => {
    utterance.hear(samples);
    return text.slice(0, utterance.words[utterance.heardWords - 1]?.end ?? 0);
  });
}
