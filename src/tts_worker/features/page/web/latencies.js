/**
 * Shows where the time goes, a row for each transport that was used: from the click over the text sent, accepted by the
 * server and its first audio to the first sample heard, and from the click on Stop to silence.
 *
 * Offers: Latencies, which appends to an element. Times are wall-clock milliseconds.
 */

/** The parts of a start, by the later of their two times. */
const START_PARTS = [
  ["sentMs", "click → text"],
  ["acceptedMs", "text → engine"],
  ["firstFrameMs", "engine → first frame"],
  ["heardMs", "first frame → heard"],
];

function element(name, className, ...children) {
  const created = document.createElement(name);
  created.className = className;
  created.append(...children);
  return created;
}

/**
 * Consecutive times as parts; a time that is missing or out of order adds nothing.
 * @param {{askedMs: number}} times @returns {{label: string, ms: number}[]}
 */
export function startParts(times) {
  let atMs = times.askedMs;
  return START_PARTS.map(([name, label]) => {
    const ms = Math.max(0, (times[name] ?? atMs) - atMs);
    atMs += ms;
    return { label, ms };
  });
}

export class Latencies {
  #container;
  #rows = new Map(); // transport -> {start: parts, stop: parts}

  /** @param {HTMLElement} container */
  constructor(container) {
    this.#container = container;
  }

  /** The first sample was heard. @param {string} transport its label @param {object} times of the utterance */
  showStart(transport, times) {
    this.#row(transport).start = startParts(times);
    this.#show();
  }

  /** @param {string} transport its label @param {{silentMs: number | null, answeredMs: number | null}} stop */
  showStop(transport, { silentMs, answeredMs }) {
    if (silentMs === null || answeredMs === null) return;
    const parts = [
      { label: "stop → silent", ms: silentMs },
      { label: "stop → answer", ms: answeredMs },
    ];
    this.#row(transport).stop = parts;
    this.#show();
  }

  #row(transport) {
    if (!this.#rows.has(transport)) this.#rows.set(transport, { start: [], stop: [] });
    return this.#rows.get(transport);
  }

  #show() {
    const totals = [...this.#rows.values()].map(({ start }) => start.reduce((sum, { ms }) => sum + ms, 0));
    const longestMs = Math.max(1, ...totals);
    this.#container.replaceChildren(
      ...[...this.#rows].map(([transport, row]) =>
        element(
          "div",
          "latency",
          element("h3", "", transport),
          this.#bar(row.start, longestMs),
          this.#values([...row.start, ...row.stop]),
        ),
      ),
    );
  }

  #bar(parts, longestMs) {
    const bar = element("div", "bar");
    bar.ariaHidden = "true"; // the values say the same
    for (const { ms } of parts) {
      const part = element("span", "");
      part.style.width = `${(100 * ms) / longestMs}%`;
      bar.append(part);
    }
    return bar;
  }

  #values(parts) {
    const pairs = parts.map(({ label, ms }) =>
      element("div", "", element("dt", "", label), element("dd", "", `${Math.round(ms)} ms`)),
    );
    return element("dl", "", ...pairs);
  }
}
