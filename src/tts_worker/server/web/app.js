/**
 * The page: connects its elements to the session. Decisions are made in speech-session.js; this module shows them.
 *
 * The same page is served at `/`, over a WebSocket, and at `/webrtc`, over WebRTC with the parts of a stop's latency.
 */
import { isSendable, keyStore } from "./api.js";
import { LiveInput } from "./live-input.js";
import { Microphone } from "./microphone.js";
import { Player } from "./player.js";
import { VoiceSettings } from "./settings.js";
import { SpeechSession } from "./speech-session.js";
import { TextView } from "./text-view.js";
import { Waveform } from "./waveform.js";
import { webRtcTransport } from "./webrtc/transport.js";
import { openWebSocket } from "./websocket.js";
import { RATE_HZ } from "./wire.js";

const CONNECTION_LABELS = {
  connecting: "Connecting",
  ready: "Connected",
  unresponsive: "Not answering",
  reconnecting: "Reconnecting",
  gone: "Server gone",
  full: "Server full",
  starting: "Server starting",
  draining: "Server shutting down",
  locked: "API key needed",
  refused: "Refused",
  unsupported: "Not available",
};
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

const overWebRtc = location.pathname === "/webrtc";
const { createPlayer, openTransport, showStopParts } = overWebRtc ? webRtcTransport() : webSocketTransport();
const textView = new TextView(byId("text-view"), field, byId("mirror"));
const waveform = new Waveform(byId("waveform"));
const settings = new VoiceSettings();

let connected = false;
let shownUtterance = null; // the utterance whose words the text view shows
let rest = null; // {text, base}: the text that an interruption left unspoken
let drawing = false; // the waveform
let result = ""; // the status text while nothing is in progress

const session = new SpeechSession(
  {
    changed: showState,
    connection: showConnection,
    problem: showProblem,
    began(utterance) {
      shownUtterance = utterance;
      result = "";
      offerRest(null);
      textView.begin(utterance.base);
      byId("spoken").textContent = "0.0 s";
      showState();
    },
    words(utterance, words) {
      if (utterance === shownUtterance) textView.addWords(words, utterance.base);
    },
    heard(utterance) {
      if (utterance === shownUtterance && utterance.heardWords) textView.highlight(utterance.heardWords);
      showSpoken(utterance);
    },
    stopMeasured(stop) {
      byId("stop-silent").textContent = milliseconds(stop.silentMs);
      byId("stop-answered").textContent = milliseconds(stop.answeredMs);
      showStopParts(stop);
    },
    finished(utterance, outcome) {
      showSpoken(utterance);
      if (outcome.kind === "done") {
        textView.complete();
      } else {
        liveInput.skip();
        textView.showReport(utterance.base, outcome.spoken, outcome.remaining);
        if (outcome.speakable) offerRest({ text: outcome.remaining, base: utterance.base + outcome.spoken.length });
      }
      shownUtterance = null;
      const failed = ["error", "truncated", "empty"].includes(outcome.kind);
      if (failed) showProblem(outcome.message);
      result = failed ? "" : outcome.message;
    },
  },
  createPlayer,
  openTransport,
);

const liveInput = new LiveInput(field, session, () => settings.values);

function webSocketTransport() {
  return { createPlayer: (listener) => new Player(listener), openTransport: openWebSocket, showStopParts() {} };
}

// -- commands ----------------------------------------------------------------------------------------------------------

function speak(text, base) {
  showProblem("");
  result = "";
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
  session.stop(reason, atMs);
}

byId("stop").addEventListener("click", () => stop());

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

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  if (!isSendable(key)) {
    showProblem("A browser can only send keys of letters, digits and !#$%&'*+-.^_`|~ to a WebSocket.");
    return;
  }
  keyStore.key = key;
  showProblem("");
  session.connect();
});

addEventListener("online", () => session.connect());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && byId("key-form").hidden) session.connect();
});
addEventListener("pagehide", () => session.close());
addEventListener("pageshow", ({ persisted }) => {
  if (persisted) session.connect(); // from the back/forward cache
});

// -- what the page shows -----------------------------------------------------------------------------------------------

function showState() {
  const { state } = session;
  const live = state !== "idle";
  byId("state").textContent = live || connected ? STATE_LABELS[state] : byId("connection").textContent;
  const status = live ? STATUS_TEXTS[state] : result;
  if (byId("status").textContent !== status) byId("status").textContent = status; // screen readers announce changes
  byId("pause").textContent = state === "paused" ? "Resume" : "Pause";
  enable(byId("pause"), ["requested", "speaking", "paused"].includes(state));
  enable(byId("stop"), live && state !== "stopping");
  field.readOnly = live && !liveInput.on;
  byId("hint").classList.toggle("keys", !liveInput.on);
  byId("hint").textContent = liveInput.on
    ? "Words are spoken as you finish them. Enter speaks what is there, Esc stops."
    : "Ctrl + Enter speaks, Esc stops.";
  if (shownUtterance) {
    byId("first-audio").textContent = milliseconds(shownUtterance.firstAudioMs);
    byId("gaps").textContent = shownUtterance.gaps;
  }
  const speaking = state === "speaking";
  if (speaking !== drawing) waveform.watch(speaking ? session.analyser : null);
  drawing = speaking;
}

/** Not `disabled`: a disabled button loses the focus of a keyboard user. */
function enable(button, enabled) {
  button.setAttribute("aria-disabled", String(!enabled));
}

function isEnabled(button) {
  return button.getAttribute("aria-disabled") !== "true";
}

function showConnection(state, problem) {
  connected = state === "ready";
  byId("connection").textContent = CONNECTION_LABELS[state];
  byId("connection").dataset.state = state;
  if (connected) {
    showProblem("");
    if (!byId("key-form").hidden) {
      byId("key-form").hidden = true;
      byId("key").value = "";
      field.focus();
    }
    settings.load();
  }
  if (problem) {
    showProblem(problem.final ? problem.text : `${problem.text} Trying again …`);
    if (state === "locked" && byId("key-form").hidden) {
      byId("key-form").hidden = false;
      byId("key").focus();
    }
  }
  showState();
}

function showSpoken(utterance) {
  byId("spoken").textContent = `${(utterance.playedSamples / RATE_HZ).toFixed(1)} s`;
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

async function showOtherTransport() {
  const link = byId("other-transport");
  link.href = overWebRtc ? "/" : "/webrtc";
  link.textContent = overWebRtc ? "Use a WebSocket instead of WebRTC" : "Use WebRTC instead of a WebSocket";
  if (overWebRtc) {
    link.hidden = false;
    return;
  }
  try {
    link.hidden = !(await fetch("/webrtc")).ok; // the server may be configured not to offer it
  } catch {
    // not reachable: shown by the connection
  }
}

for (const element of document.querySelectorAll("[data-transport]")) {
  element.hidden = (element.dataset.transport === "webrtc") !== overWebRtc;
}
document.title = byId("title").textContent = overWebRtc ? "tts-worker over WebRTC" : "tts-worker";
showState();
session.connect();
showOtherTransport();
