/**
 * The page: connects its elements to the session. Decisions are made in speech-session.js; this module shows them.
 *
 * One page for both transports, with a session for each: `/` opens it over a WebSocket, `/webrtc` over WebRTC.
 */
import { Clips } from "./clips.js";
import { CodePanel } from "./code-panel.js";
import { Compare } from "./compare.js";
import { ConnectionView } from "./connection-view.js";
import { downloadSpeech } from "./download.js";
import { Examples, isExample } from "./examples.js";
import { Figures } from "./figures.js";
import { History } from "./history.js";
import { languagesOf } from "./languages.js";
import { LiveInput } from "./live-input.js";
import { Microphone } from "./microphone.js";
import { RestWave } from "./rest-wave.js";
import { VoiceSettings } from "./settings.js";
import { readLink, ShareLink } from "./share.js";
import { SpeechSession } from "./speech-session.js";
import { TextView } from "./text-view.js";
import { Timeline } from "./timeline.js";
import { openedTransport, otherPages, TRANSPORTS } from "./transports.js";

const STATE_LABELS = {
  idle: "Ready",
  waiting: "Waiting",
  requested: "Waiting",
  speaking: "Speaking",
  writing: "Waiting",
  paused: "Paused",
  stopping: "Stopping",
};
const STATUS_TEXTS = {
  waiting: "Waiting for the server.",
  requested: "Waiting for the first audio.",
  speaking: "Speaking.",
  writing: "Waiting for more text.",
  paused: "Paused.",
  stopping: "Stopping.",
};
const byId = (id) => document.getElementById(id);
const field = byId("text");
const sampleText = field.defaultValue;

const textView = new TextView(byId("text-view"), field, byId("mirror"));
const timeline = new Timeline(byId("timeline"));
const figures = new Figures();
const clips = new Clips();
const restWave = new RestWave(clips, timeline, (seconds) => {
  byId("lead-hint").hidden = true;
  byId("wave-hint").textContent =
    seconds === null ? "" : `Preview: ${seconds.toFixed(1)} s in the voice of ${settings.voice.name}.`;
});
const examples = new Examples(byId("examples"), chooseText);
const connection = new ConnectionView({ problem: showProblem, connect: () => session.connect() });
const settings = new VoiceSettings({
  changed: showSettings,
  problem: showProblem,
  beforePreview() {
    session.stop();
    compare.stop();
  },
}, clips);
const compare = new Compare(clips, () => ({ text: field.value, settings: settings.values }), {
  problem: showProblem,
  beforePlaying() {
    session.stop();
    settings.stopPreview();
  },
});
new ShareLink(
  { button: byId("share-copy"), withText: byId("share-text"), link: byId("share-link") },
  () => ({ text: field.value, settings: settings.values }),
);
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
let latestUtterance = null; // the one whose figures are shown
let rest = null; // {text, base}: the text that an interruption left unspoken
let result = ""; // the status text while nothing is in progress
let shownLanguages = null; // of the examples
let shownVoices = ""; // of the comparison
let wasHeard = false; // the timeline shows an utterance

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
      shownUtterance = latestUtterance = utterance;
      result = "";
      offerRest(null);
      textView.begin(utterance.base);
      restWave.cancel();
      wasHeard = true;
      byId("wave-hint").textContent = "";
      byId("lead-hint").hidden = name !== "websocket";
      timeline.begin(sessions[name].analyser);
      figures.clear();
      showState();
    },
    audio(utterance, pcm) {
      if (utterance === shownUtterance) timeline.model.addAudio(new Int16Array(pcm), performance.now());
    },
    firstHeard(utterance) {
      figures.firstHeard(TRANSPORTS[name].label, utterance);
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
      figures.heard(utterance, timeline.model.leadMs);
    },
    stopMeasured(utterance, stop) {
      if (utterance !== latestUtterance || name !== transport) return; // a newer one is shown
      figures.stopMeasured(TRANSPORTS[name].label, stop);
      showStopParts(stop);
    },
    finished(utterance, outcome) {
      figures.showSpoken(utterance, timeline.model.leadMs);
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
  latestUtterance = null;
  figures.clear();
  showTransport();
  session.prepareAudio();
  session.connect();
}

// -- commands ----------------------------------------------------------------------------------------------------------

function speak(text, base) {
  showProblem("");
  result = "";
  settings.stopPreview();
  compare.stop();
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
  compare.stop();
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
  if (!shownUtterance) showUnspoken();
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
  wasHeard = false;
  latestUtterance = null;
  figures.clear();
  showUnspoken();
  codePanel.update();
  showState();
}

/** The text of the field, of which nothing was spoken so far. */
function showUnspoken() {
  textView.showPlain();
  if (wasHeard || session.state !== "idle") return;
  const isOwnText = field.value === sampleText || isExample(field.value);
  restWave.show(isOwnText && connection.connected && settings.voice ? field.value : "", settings.values);
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
  figures.showState(live || connection.connected ? STATE_LABELS[state] : connection.label);
  const status = live ? STATUS_TEXTS[state] : result;
  if (byId("status").textContent !== status) byId("status").textContent = status; // screen readers announce changes
  byId("pause").textContent = state === "paused" ? "Resume" : "Pause";
  enable(byId("pause"), ["requested", "speaking", "writing", "paused"].includes(state));
  enable(byId("stop"), live && state !== "stopping");
  for (const example of byId("examples").children) enable(example, !live);
  field.readOnly = live && !liveInput.on;
  byId("hint").classList.toggle("keys", !liveInput.on);
  byId("hint").textContent = liveInput.on
    ? "Words are spoken as you finish them. Enter speaks what is there, Esc stops."
    : "Ctrl + Enter speaks, Esc stops.";
  if (shownUtterance) figures.update(shownUtterance);
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
  if (!wasHeard && !shownUtterance) showUnspoken();
  const voices = JSON.stringify([settings.voices.map(({ id }) => id), settings.voice?.id]);
  if (voices !== shownVoices && settings.voice) compare.show(settings.voices, settings.voice.id);
  shownVoices = voices;
  const languages = settings.voice ? languagesOf(settings.voice) : [];
  if (String(languages) === shownLanguages) return;
  shownLanguages = String(languages);
  examples.show(languages);
  showState();
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

function showTransport() {
  document.querySelector(`#transport [value=${transport}]`).checked = true;
  for (const element of document.querySelectorAll("[data-transport]")) {
    element.hidden = element.dataset.transport !== transport;
  }
  showState();
}

async function showWhatIsOffered() {
  const pages = await otherPages();
  if (pages === null) return;
  const radio = document.querySelector("#transport [value=webrtc]");
  const reason = TRANSPORTS.webrtc.path in pages ? pages[TRANSPORTS.webrtc.path] : "This server does not offer WebRTC";
  radio.disabled = reason !== null && transport !== "webrtc";
  byId("transport-hint").textContent = radio.parentElement.title = reason ? `${reason}.` : "";
  for (const link of [byId("agent"), byId("detect")]) link.hidden = !(link.pathname in pages);
}

/** The settings of a shared link, and its text. */
function openLink() {
  const { text, ...values } = readLink(location.hash);
  if (text) chooseText(text);
  if (Object.keys(values).length) settings.restore(values);
}

showSettings();
showTransport();
openLink();
session.connect();
showWhatIsOffered();
