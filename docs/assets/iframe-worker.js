/*
 * Search in the site as files: a browser starts no worker for a page of file://, so its script runs in a hidden frame.
 * The frame has the two sides of a worker that the search uses: messages in, and postMessage out.
 */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #waiting = [];

    constructor(url) {
      super();
      this.#frame.hidden = true;
      document.documentElement.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = () => {
        for (const data of this.#waiting.splice(0)) this.#deliver(data);
        this.postMessage = (data) => this.#deliver(data);
      };
      script.onerror = () => this.dispatchEvent(new Event("error"));
      inside.document.documentElement.append(script);
    }

    postMessage(data) {
      this.#waiting.push(data);
    }

    terminate() {
      this.#frame.remove();
    }

    #deliver(data) {
      this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
