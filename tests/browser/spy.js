// Runs before the page's own scripts: hears what its audio graph plays, sees when words light up and buttons are used.
{
  const spy = (globalThis.spy = { quanta: [], lit: [], clicks: [], problems: [], contexts: [], taps: [], stallMs: 0 });

  // The longest time that the page was kept from running: what anything shown may be late by, and no fault of its own.
  let ranAtMs = performance.now();
  setInterval(() => {
    const nowMs = performance.now();
    spy.stallMs = Math.max(spy.stallMs, nowMs - ranAtMs);
    ranAtMs = nowMs;
  }, 10);

  // So long the player waits for the audio thread to say where a stop has cut, before it takes the last place that it
  // knows. On a busy machine that may be too short, and the tests compare sample by sample.
  const CUT_TIMEOUT_MS = 250;
  const { setTimeout } = globalThis;
  globalThis.setTimeout = (act, ms, ...rest) => setTimeout(act, ms === CUT_TIMEOUT_MS ? 20_000 : ms, ...rest);

  // Posts every quantum that is not silent, with its place on the audio clock, and answers with the place of the next
  // one when it is asked. On a busy machine Chromium now and then shows two quanta in a row the same currentFrame.
  const TAP = `registerProcessor("tap", class extends AudioWorkletProcessor {
    constructor() {
      super();
      this.next = 0;
      this.port.onmessage = () => this.port.postMessage({ next: this.next });
    }
    process([[samples]]) {
      const frame = Math.max(currentFrame, this.next);
      this.next = frame + 128;
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
      connect.call(tap, target); // its output is silence; this only keeps it running
    }
    return connect.call(this, target, ...rest);
  };

  const ask = (tap) => {
    const answer = new Promise((resolve) => tap.asked.push(resolve));
    tap.port.postMessage("where are you?");
    return answer;
  };

  // Once the taps have answered, every quantum that was rendered before is here. (One whose context is closed does not.)
  spy.settled = () => Promise.all(spy.taps.filter((tap) => tap.context.state === "running").map(ask));

  // `frame`: what the audio thread was to render next when it could hear of the click.
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
        spy.lit.push({ text: target.textContent, atMs: Date.now() });
      }
    }
  }).observe(document, { subtree: true, attributeFilter: ["class"], attributeOldValue: true });

  // A problem may be over before a test looks.
  new MutationObserver((records) => {
    for (const { target } of records) {
      if (target.id === "problem" && target.textContent) spy.problems.push(target.textContent);
    }
  }).observe(document, { subtree: true, childList: true });
}
