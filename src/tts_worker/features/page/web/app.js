/**
 * The page: connects its elements to the session. Decisions are made in speech-session.js; this module shows them.
 *
 * One page for both transports, with a session for each: `/` opens it over a WebSocket, `/webrtc` over WebRTC.
 */
import { CodePanel } from "./code-panel.js";
import { ConnectionView } from "./connection-view.js";
import { downloadSpeech } from "./download.js";
import { Examples } from "./examples.js";
import { History } from "./history.js";
import { Latencies } from "./latencies.js";
import { languagesOf } from "./languages.js";
import { LiveInput } from "./live-input.js";
import { Microphone } from "./microphone.js";
import { VoiceSettings } from "./settings.js";
import { SpeechSession } from "./speech-session.js";
import { TextView } from "./text-view.js";
import { Timeline } from "./timeline.js";
import { openedTransport, otherPages, TRANSPORTS } from "./transports.js";
import { RATE_HZ } from "./wire.js";

const STATE_LABELS = {
  idle: "Ready",
  waiting: "Waiting",
  requested: "Waiting",
  speaking: "Speaking",
  paused: "Paused",
  stopping: "Stopping",
};
const STATUS_TEXTS = {
  waiting: "Waiting for the server.",
  requested: "Waiting for the first audio.",
  speaking: "Speaking.",
  paused: "Paused.",
  stopping: "Stopping.",
};
const byId = (id) => document.getElementById(id);
const field = byId("text");

const textView = new TextView(byId("text-view"), field, byId("mirror"));
const timeline = new Timeline(byId("timeline"));
const latencies = new Latencies(byId("latencies"));
const examples = new Examples(byId("examples"), chooseText);
const connection = new ConnectionView({ problem: showProblem, connect: () => session.connect() });
const settings = new VoiceSettings({
  changed: showSettings,
  problem: showProblem,
  beforePreview: () => session.stop(),
});
const codePanel = new CodePanel(
  { panel: byId("code-panel"), languages: byId("languages"), code: byId("code"), copy: byId("copy") },
  () => ({ text: field.value, settings: settings.values }),
);
const history = new History(byId("history"), {
  reuse({ text, settings: values }) {
    settings.restore(values);
    chooseText(text);
    field.focus();
  },
  download: ({ text, settings: values }) => download(text, values),
});
const liveInput = new LiveInput(field, () => session, () => settings.values);

let shownUtterance = null; // the utterance whose words the text view shows
let rest = null; // {text, base}: the text that an interruption left unspoken
let result = ""; // the status text while nothing is in progress
let shownLanguages = null; // of the examples

const sessions = {};
let transport = openedTransport();
let session = sessionOver(transport);

// -- the session -------------------------------------------------------------------------------------------------------

/** The session over this transport; it is made on first use. */
function sessionOver(name) {
  if (!(name in sessions)) {
    const { createPlayer, openTransport, showStopParts } = TRANSPORTS[name].create();
    const view = { ...viewOf(name), ...utteranceView(name, showStopParts) };
    sessions[name] = new SpeechSession(view, createPlayer, openTransport);
  }
  return sessions[name];
}

/** What a session shows only while its transport is chosen. */
function viewOf(name) {
  return {
    changed: () => name === transport && showState(),
    connection: (state, problem) => name === transport && showConnection(state, problem),
    problem: (text) => name === transport && showProblem(text),
  };
}

/** What a session shows of its utterances. */
function utteranceView(name, showStopParts) {
  return {
    began(utterance) {
      shownUtterance = utterance;
      result = "";
      offerRest(null);
      textView.begin(utterance.base);
      timeline.begin(sessions[name].analyser);
      byId("spoken").textContent = "0.0 s";
      showState();
    },
    audio(utterance, pcm) {
      if (utterance === shownUtterance) timeline.model.addAudio(new Int16Array(pcm), performance.now());
    },
    firstHeard(utterance) {
      byId("latency-card").hidden = false;
      latencies.showStart(TRANSPORTS[name].label, utterance.times);
    },
    words(utterance, words) {
      if (utterance !== shownUtterance) return;
      textView.addWords(words, utterance.base);
      timeline.model.addWords(
        words
          .filter((word) => "startSample" in word)
          .map(({ start, end, startSample }) => ({ text: utterance.text.slice(start, end), startSample })),
      );
    },
    heard(utterance) {
      if (utterance === shownUtterance) timeline.hear(utterance.playedSamples);
      if (utterance === shownUtterance && utterance.heardWords) textView.highlight(utterance.heardWords);
      // Every change lays out and paints the page again: ten a second, not one for each of fifty positions.
      if (spokenTime(utterance) !== byId("spoken").textContent) showSpoken(utterance);
    },
    stopMeasured(stop) {
      byId("stop-silent").textContent = milliseconds(stop.silentMs);
      byId("stop-answered").textContent = milliseconds(stop.answeredMs);
      latencies.showStop(TRANSPORTS[name].label, stop);
      showStopParts(stop);
    },
    finished(utterance, outcome) {
      showSpoken(utterance);
      timeline.hear(utterance.playedSamples);
      timeline.end(outcome.kind !== "done");
      remember(utterance, name, outcome);
      if (outcome.kind === "done" && !outcome.skipped.length) {
        textView.complete();
      } else {
        if (outcome.kind !== "done") liveInput.skip();
        textView.showReport(utterance.base, outcome.spoken, outcome.remaining, outcome.skipped);
        if (outcome.speakable) offerRest({ text: outcome.remaining, base: utterance.base + outcome.spoken.length });
      }
      shownUtterance = null;
      const failed = ["error", "truncated", "empty"].includes(outcome.kind);
      if (failed) showProblem(outcome.message);
      result = failed ? "" : outcome.message;
    },
  };
}

/** Continue over another transport. What is being spoken ends. */
function switchTransport(name) {
  liveInput.skip();
  session.close();
  transport = name;
  session = sessionOver(name);
  globalThis.history.replaceState(null, "", TRANSPORTS[name].path);
  showProblem("");
  showTransport();
  session.prepareAudio();
  session.connect();
}

// -- commands ----------------------------------------------------------------------------------------------------------

function speak(text, base) {
  showProblem("");
  result = "";
  settings.stopPreview();
  if (!text.trim()) {
    result = "There is no text yet: type or paste something first.";
    showState();
    field.focus();
    return;
  }
  session.say(text, base, settings.values);
  liveInput.skip();
}

byId("speak").addEventListener("click", (event) => {
  if (event.detail < 2) speak(field.value, 0); // the second click of a double click is ignored
});

byId("pause").addEventListener("click", () => {
  if (!isEnabled(byId("pause"))) return;
  showProblem("");
  if (session.state === "paused") session.resume();
  else session.pause();
});

function stop(reason, atMs) {
  liveInput.skip();
  settings.stopPreview();
  session.stop(reason, atMs);
}

byId("stop").addEventListener("click", () => stop());

byId("download").addEventListener("click", () => download(field.value, settings.values));

async function download(text, values) {
  showProblem("");
  try {
    await downloadSpeech(text, values);
  } catch (error) {
    showProblem(error.message);
  }
}

byId("rest").addEventListener("click", () => {
  const { text, base } = rest;
  speak(text, base);
  byId("stop").focus(); // this button is hidden now
});

byId("live").addEventListener("change", ({ target }) => {
  if (target.checked) liveInput.turnOn();
  else liveInput.turnOff();
  showState();
  if (target.checked) field.focus();
});

byId("transport").addEventListener("change", ({ target }) => switchTransport(target.value));

const microphone = new Microphone({
  speech(atMs) {
    if (["requested", "speaking"].includes(session.state)) stop("barge_in", atMs);
  },
  level(aboveDb) {
    byId("microphone-level").value = aboveDb;
  },
  lost: microphoneFailed,
});

byId("microphone").addEventListener("change", async ({ target }) => {
  showProblem("");
  byId("microphone-level").hidden = !target.checked;
  if (!target.checked) {
    microphone.close();
    return;
  }
  try {
    await microphone.open();
  } catch (error) {
    microphoneFailed(error.message);
  }
});

function microphoneFailed(problem) {
  byId("microphone").checked = false;
  byId("microphone-level").hidden = true;
  showProblem(problem);
}

field.addEventListener("input", (event) => {
  if (event.isComposing) {
    textView.update();
    return;
  }
  textChanged();
});
field.addEventListener("compositionend", textChanged);

function textChanged() {
  offerRest(null);
  if (!shownUtterance) textView.showPlain();
  if (liveInput.on) liveInput.input();
  textView.update();
  codePanel.update();
}

/** Replace the text, unless it is being spoken. */
function chooseText(text) {
  if (session.state !== "idle") return;
  field.value = text;
  liveInput.skip();
  result = "";
  showProblem("");
  offerRest(null);
  textView.showPlain();
  codePanel.update();
  showState();
}

field.addEventListener("beforeinput", (event) => {
  if (!liveInput.on || event.inputType !== "insertLineBreak") return;
  event.preventDefault();
  liveInput.enter();
  textView.update();
});

document.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Escape") stop();
  else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.repeat) speak(field.value, 0);
});

for (const gesture of ["pointerdown", "keydown"]) {
  addEventListener(gesture, () => session.prepareAudio(), { once: true, capture: true });
}

addEventListener("online", () => session.connect());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !connection.locked) session.connect();
});
addEventListener("pagehide", () => session.close());
addEventListener("pageshow", ({ persisted }) => {
  if (persisted) session.connect(); // from the back/forward cache
});

// -- what the page shows -----------------------------------------------------------------------------------------------

function showState() {
  const { state } = session;
  const live = state !== "idle";
  byId("state").textContent = live || connection.connected ? STATE_LABELS[state] : connection.label;
  const status = live ? STATUS_TEXTS[state] : result;
  if (byId("status").textContent !== status) byId("status").textContent = status; // screen readers announce changes
  byId("pause").textContent = state === "paused" ? "Resume" : "Pause";
  enable(byId("pause"), ["requested", "speaking", "paused"].includes(state));
  enable(byId("stop"), live && state !== "stopping");
  for (const example of byId("examples").children) enable(example, !live);
  field.readOnly = live && !liveInput.on;
  byId("hint").classList.toggle("keys", !liveInput.on);
  byId("hint").textContent = liveInput.on
    ? "Words are spoken as you finish them. Enter speaks what is there, Esc stops."
    : "Ctrl + Enter speaks, Esc stops.";
  if (shownUtterance) {
    byId("first-audio").textContent = milliseconds(shownUtterance.firstAudioMs);
    byId("gaps").textContent = shownUtterance.gaps;
  }
}

/** Not `disabled`: a disabled button loses the focus of a keyboard user. */
function enable(button, enabled) {
  button.setAttribute("aria-disabled", String(!enabled));
}

function isEnabled(button) {
  return button.getAttribute("aria-disabled") !== "true";
}

function showConnection(state, problem) {
  connection.show(state, problem);
  if (connection.connected) settings.load();
  showState();
}

function showSettings() {
  codePanel.update();
  const languages = settings.voice ? languagesOf(settings.voice) : [];
  if (String(languages) === shownLanguages) return;
  shownLanguages = String(languages);
  examples.show(languages);
  showState();
}

function spokenTime({ playedSamples }) {
  return `${(playedSamples / RATE_HZ).toFixed(1)} s`;
}

function showSpoken(utterance) {
  byId("spoken").textContent = spokenTime(utterance);
  byId("lead").textContent = milliseconds(timeline.model.leadMs);
}

function remember({ text, settings: values, firstAudioMs }, name, { message }) {
  byId("history-panel").hidden = false;
  history.add({ text, settings: values, transport: TRANSPORTS[name].label, firstAudioMs, message });
}

/** @param {{text: string, base: number} | null} unspoken text of an interrupted utterance that can be spoken */
function offerRest(unspoken) {
  rest = unspoken;
  byId("rest").hidden = !rest;
}

function showProblem(text) {
  byId("problem").textContent = text;
}

function milliseconds(ms) {
  return ms === null ? "–" : `${Math.round(ms)} ms`;
}

function showTransport() {
  document.querySelector(`#transport [value=${transport}]`).checked = true;
  for (const element of document.querySelectorAll("[data-transport]")) {
    element.hidden = element.dataset.transport !== transport;
  }
  showState();
}

async function showWhatIsOffered() {
  const radio = document.querySelector("#transport [value=webrtc]");
  const pages = await otherPages();
  radio.disabled = pages !== null && !pages.includes(TRANSPORTS.webrtc.path);
  if (radio.disabled) radio.parentElement.title = "This server does not offer WebRTC.";
  for (const link of [byId("agent"), byId("detect")]) link.hidden = !pages?.includes(link.pathname);
}

showSettings();
showTransport();
session.connect();
showWhatIsOffered();
