/**
 * Shows where the time goes, a row for each transport that was used: from the click over the text sent, accepted by the
 * server and its first audio to the first sample heard, and from the click on Stop to silence.
 *
 * Offers: Latencies, which appends to an element. Times are wall-clock milliseconds.
 */

/** The parts of a start, by the later of their two times; `part` names the color. */
const START_PARTS = [
  ["sentMs", "sent", "click → text"],
  ["acceptedMs", "accepted", "text → engine"],
  ["firstFrameMs", "synthesized", "engine → first frame"],
  ["heardMs", "played", "first frame → heard"],
];

function element(name, className, ...children) {
  const created = document.createElement(name);
  created.className = className;
  created.append(...children);
  return created;
}

/**
 * Consecutive times as parts; a time that is missing or out of order adds nothing.
 * @param {{askedMs: number}} times @returns {{part: string, label: string, ms: number}[]}
 */
export function startParts(times) {
  let atMs = times.askedMs;
  return START_PARTS.map(([name, part, label]) => {
    const ms = Math.max(0, (times[name] ?? atMs) - atMs);
    atMs += ms;
    return { part, label, ms };
  });
}

export class Latencies {
  #container;
  #rows = new Map(); // transport -> {start: parts, stop: parts}

  /** @param {HTMLElement} container */
  constructor(container) {
    this.#container = container;
  }

  /** The first sample was heard; of a stop of this utterance nothing is known. @param {string} transport its label @param {object} times of the utterance */
  showStart(transport, times) {
    this.#rows.set(transport, { start: startParts(times), stop: [] });
    this.#show();
  }

  /** @param {string} transport its label @param {{silentMs: number | null, answeredMs: number | null}} stop */
  showStop(transport, { silentMs, answeredMs }) {
    if (silentMs === null || answeredMs === null) return;
    const parts = [
      { part: "stop", label: "stop → silent", ms: silentMs },
      { part: "stop", label: "stop → answer", ms: answeredMs },
    ];
    this.#rows.set(transport, { start: [], ...this.#rows.get(transport), stop: parts });
    this.#show();
  }

  #show() {
    const totals = [...this.#rows.values()].map(({ start }) => start.reduce((sum, { ms }) => sum + ms, 0));
    const longestMs = Math.max(1, ...totals);
    this.#container.replaceChildren(
      ...[...this.#rows].map(([transport, row]) =>
        element(
          "div",
          "latency",
          element("h2", "", transport),
          this.#bar(row.start, longestMs),
          this.#values([...row.start, ...row.stop]),
        ),
      ),
    );
  }

  #bar(parts, longestMs) {
    const bar = element("div", "bar");
    bar.ariaHidden = "true"; // the values say the same
    for (const { part, ms } of parts) {
      const span = element("span", part);
      span.style.width = `${(100 * ms) / longestMs}%`;
      bar.append(span);
    }
    return bar;
  }

  #values(parts) {
    const pairs = parts.map(({ part, label, ms }) =>
      element("div", part, element("dt", "", label), element("dd", "", `${Math.round(ms)} ms`)),
    );
    return element("dl", "", ...pairs);
  }
}
