// Runs before the page's own scripts: hears what its audio graph plays, sees when words light up and buttons are used.
{
  const spy = (globalThis.spy = { quanta: [], lit: [], clicks: [], problems: [], contexts: [], taps: [] });

  // Posts every quantum that is not silent, with its place on the audio clock. On a busy machine Chromium now and then
  // shows two quanta in a row the same currentFrame.
  const TAP = `registerProcessor("tap", class extends AudioWorkletProcessor {
    constructor() {
      super();
      this.next = 0;
      this.port.onmessage = () => this.port.postMessage("echo");
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
      tap.echoed = () => {};
      tap.port.onmessage = ({ data }) => (data === "echo" ? tap.echoed() : spy.quanta.push(data));
      spy.taps.push(tap);
      connect.call(this, tap);
      connect.call(tap, target); // its output is silence; this only keeps it running
    }
    return connect.call(this, target, ...rest);
  };

  // Once the taps have answered, every quantum that was rendered before is here. (One whose context is closed does not.)
  spy.settled = () =>
    Promise.all(
      spy.taps.map((tap) => {
        const answer = new Promise((resolve) => (tap.echoed = resolve));
        tap.port.postMessage("echo");
        return Promise.race([answer, new Promise((resolve) => setTimeout(resolve, 1000))]);
      }),
    );

  addEventListener("click", ({ target }) => spy.clicks.push({ id: target.id, atMs: Date.now() }), true);

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
