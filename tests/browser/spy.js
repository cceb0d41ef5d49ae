// Runs before the page's own scripts: records what its audio graph plays, which words are highlighted, and clicks.
{
  const spy = (globalThis.spy = { quanta: [], highlighted: [], clicks: [], problems: [], contexts: [], taps: [], stallMs: 0 });

  // The longest time that the page's event loop was blocked: everything shown may be late by that much.
  let ranAtMs = performance.now();
  setInterval(() => {
    const nowMs = performance.now();
    spy.stallMs = Math.max(spy.stallMs, nowMs - ranAtMs);
    ranAtMs = nowMs;
  }, 10);

  // The player's timeout for the exact position of a stop, after which it uses the last known one. On a busy machine it
  // may be too short, and the tests compare sample by sample.
  const CUT_TIMEOUT_MS = 250;
  const { setTimeout } = globalThis;
  globalThis.setTimeout = (act, ms, ...rest) => setTimeout(act, ms === CUT_TIMEOUT_MS ? 20_000 : ms, ...rest);

  // Posts every quantum that is not silent with its position: the number of samples rendered before. It answers a query
  // with the position of the next one. It counts, because currentFrame is no position: Chromium updates it only where it
  // gets the lock of the audio graph at once, so a busy page reads an old value for some quanta, and then a jump. A quantum
  // that the browser did not render at all is rendered by no node, and so it is no gap of the page.
  const TAP = `registerProcessor("tap", class extends AudioWorkletProcessor {
    constructor() {
      super();
      this.next = 0;
      this.port.onmessage = () => this.port.postMessage({ next: this.next });
    }
    process([[samples]]) {
      const frame = this.next;
      this.next += 128;
      if (samples?.some((sample) => sample !== 0)) {
        this.port.postMessage({ frame, atMs: Date.now(), samples: [...samples] });
      }
      return true;
    }
  })`;
  const tap = URL.createObjectURL(new Blob([TAP], { type: "text/javascript" }));

  const addModule = AudioWorklet.prototype.addModule;
  AudioWorklet.prototype.addModule = async function (url) {
    await addModule.call(this, tap);
    return addModule.call(this, url);
  };

  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (target, ...rest) {
    if (target instanceof AudioDestinationNode) {
      spy.contexts.push(this.context);
      const tap = new AudioWorkletNode(this.context, "tap", { channelCount: 1, channelCountMode: "explicit" });
      tap.asked = [];
      tap.port.onmessage = ({ data }) => (data.samples ? spy.quanta.push(data) : tap.asked.shift()(data.next));
      spy.taps.push(tap);
      connect.call(this, tap);
      connect.call(tap, target); // its output is silence; an unconnected node is not processed
    }
    return connect.call(this, target, ...rest);
  };

  const ask = (tap) => {
    const answer = new Promise((resolve) => tap.asked.push(resolve));
    tap.port.postMessage("position");
    return answer;
  };

  // Once the taps have answered, every quantum rendered before has arrived. (A tap whose context is closed never does.)
  spy.settled = () => Promise.all(spy.taps.filter((tap) => tap.context.state === "running").map(ask));

  // Once nothing was played for so many rendered samples.
  spy.untilSilent = async (samples) => {
    if (!spy.taps.length) return;
    const silentSamples = async () => (await ask(spy.taps[0])) - (spy.quanta.at(-1)?.frame ?? 0) - 128;
    while ((await silentSamples()) < samples) await new Promise((done) => setTimeout(done, 5));
  };

  // `frame`: the next quantum of the audio thread when it could learn of the click.
  addEventListener(
    "click",
    ({ target }) => {
      const click = { id: target.id, frame: null };
      spy.clicks.push(click);
      if (spy.taps.length) ask(spy.taps[0]).then((next) => (click.frame = next));
    },
    true,
  );

  new MutationObserver((records) => {
    for (const { target, oldValue } of records) {
      if (target.classList.contains("heard") && !oldValue.includes("heard")) {
        spy.highlighted.push({ text: target.textContent, atMs: Date.now() });
      }
    }
  }).observe(document, { subtree: true, attributeFilter: ["class"], attributeOldValue: true });

  // A problem may be gone before a test reads it.
  new MutationObserver((records) => {
    for (const { target } of records) {
      if (target.id === "problem" && target.textContent) spy.problems.push(target.textContent);
    }
  }).observe(document, { subtree: true, childList: true });
}
