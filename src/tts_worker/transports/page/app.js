/**
 * The page: ties its elements to the conversation. What is decided is decided in conversation.js; here it is shown.
 */
import { isSendable, keyring } from "./api.js";
import { Conversation } from "./conversation.js";
import { Ear } from "./ear.js";
import { Scope } from "./scope.js";
import { Script } from "./script.js";
import { Settings } from "./settings.js";
import { Typist } from "./typist.js";
import { RATE_HZ } from "./wire.js";

const STATES = {
  idle: "Ready",
  waiting: "Waiting",
  asking: "Waiting",
  speaking: "Speaking",
  paused: "Paused",
  stopping: "Stopping",
};
const SAYINGS = {
  waiting: "Waiting for the worker.",
  asking: "Waiting for the first sound.",
  speaking: "Speaking.",
  paused: "Paused.",
  stopping: "Stopping.",
};
const byId = (id) => document.getElementById(id);
const field = byId("text");
const script = new Script(byId("script"), field, byId("mirror"));
const scope = new Scope(byId("scope"));
const settings = new Settings();

let connected = false;
let shownTurn = null; // the turn whose words the script shows
let rest = null; // {text, base} that a stop left unspoken
let watching = false; // the scope
let verdict = ""; // what the status says while nothing goes on

const conversation = new Conversation({
  changed: showState,
  connection: showConnection,
  problem: showProblem,
  began(turn) {
    shownTurn = turn;
    verdict = "";
    offerRest(null);
    script.begin(turn.base);
    byId("spoken").textContent = "0.0 s";
    showState();
  },
  words(turn, words) {
    if (turn === shownTurn) script.addWords(words, turn.base);
  },
  heard(turn) {
    if (turn === shownTurn && turn.heardWords) script.light(turn.heardWords);
    showSpoken(turn);
  },
  stopMeasured({ silentMs, answeredMs }) {
    byId("stop-silent").textContent = milliseconds(silentMs);
    byId("stop-answered").textContent = milliseconds(answeredMs);
  },
  finished(turn, outcome) {
    showSpoken(turn);
    if (outcome.kind === "done") {
      script.complete();
    } else {
      typist.skip();
      script.cut(turn.base, outcome.spoken, outcome.remaining);
      offerRest(turn.base + outcome.spoken.length, outcome);
    }
    shownTurn = null;
    const failed = ["error", "truncated", "empty"].includes(outcome.kind);
    if (failed) showProblem(outcome.message);
    verdict = failed ? "" : outcome.message;
  },
});

const typist = new Typist(field, conversation, () => settings.values);

// -- what the listener does --------------------------------------------------------------------------------------------

function speak(text, base) {
  showProblem("");
  verdict = "";
  if (!text.trim()) {
    verdict = "There is no text yet: type or paste something first.";
    showState();
    field.focus();
    return;
  }
  conversation.say(text, base, settings.values);
  typist.skip();
}

byId("speak").addEventListener("click", (event) => {
  if (event.detail < 2) speak(field.value, 0); // the second half of a double click means nothing more
});

byId("pause").addEventListener("click", () => {
  showProblem("");
  if (conversation.state === "paused") conversation.resume();
  else conversation.pause();
});

function stop(reason, atMs) {
  typist.skip();
  conversation.stop(reason, atMs);
}

byId("stop").addEventListener("click", () => stop());

byId("rest").addEventListener("click", () => {
  const { text, base } = rest;
  speak(text, base);
  byId("stop").focus(); // this button is gone now
});

byId("live").addEventListener("change", ({ target }) => {
  if (target.checked) typist.turnOn();
  else typist.turnOff();
  showState();
  if (target.checked) field.focus();
});

const ear = new Ear({
  speech(atMs) {
    if (["asking", "speaking"].includes(conversation.state)) stop("barge_in", atMs);
  },
  level(aboveDb) {
    byId("ear-level").value = aboveDb;
  },
  lost: deafen,
});

byId("ear").addEventListener("change", async ({ target }) => {
  showProblem("");
  byId("ear-level").hidden = !target.checked;
  if (!target.checked) {
    ear.close();
    return;
  }
  try {
    await ear.open();
  } catch (error) {
    deafen(error.message);
  }
});

function deafen(problem) {
  byId("ear").checked = false;
  byId("ear-level").hidden = true;
  showProblem(problem);
}

field.addEventListener("input", (event) => {
  if (event.isComposing) {
    script.follow();
    return;
  }
  textChanged();
});
field.addEventListener("compositionend", textChanged);

function textChanged() {
  offerRest(null);
  if (!shownTurn) script.plain();
  if (typist.on) typist.input();
  script.follow();
}

field.addEventListener("beforeinput", (event) => {
  if (!typist.on || event.inputType !== "insertLineBreak") return;
  event.preventDefault();
  typist.enter();
  script.follow();
});

document.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Escape") stop();
  else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.repeat) speak(field.value, 0);
});

for (const gesture of ["pointerdown", "keydown"]) {
  addEventListener(gesture, () => conversation.prepareSound(), { once: true, capture: true });
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  if (!isSendable(key)) {
    showProblem("A browser can only send keys of letters, digits and !#$%&'*+-.^_`|~ to a WebSocket.");
    return;
  }
  keyring.key = key;
  showProblem("");
  conversation.connect();
});

addEventListener("online", () => conversation.connect());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && byId("key-form").hidden) conversation.connect();
});

// -- what the page shows -----------------------------------------------------------------------------------------------

function showState() {
  const { state } = conversation;
  const live = state !== "idle";
  byId("state").textContent = live || connected ? STATES[state] : byId("connection").textContent;
  const status = live ? SAYINGS[state] : verdict;
  if (byId("status").textContent !== status) byId("status").textContent = status; // screen readers are told of changes
  byId("pause").textContent = state === "paused" ? "Resume" : "Pause";
  enable(byId("pause"), ["asking", "speaking", "paused"].includes(state));
  enable(byId("stop"), live && state !== "stopping");
  field.readOnly = live && !typist.on;
  byId("hint").classList.toggle("keys", !typist.on);
  byId("hint").textContent = typist.on
    ? "Words are spoken as you finish them. Enter speaks what is there, Esc stops."
    : "Ctrl + Enter speaks, Esc stops.";
  if (shownTurn) {
    byId("first-audio").textContent = milliseconds(shownTurn.firstAudioMs);
    byId("gaps").textContent = shownTurn.gaps;
  }
  const sounding = state === "speaking";
  if (sounding !== watching) scope.watch(sounding ? conversation.analyser : null);
  watching = sounding;
}

/** Not `disabled`: the button under a keyboard user's focus must not vanish from under it. */
function enable(button, enabled) {
  button.setAttribute("aria-disabled", String(!enabled));
}

function showConnection(state, problem) {
  connected = state === "ready";
  const text = { connecting: "Connecting", ready: "Connected", offline: "Offline" }[state];
  byId("connection").textContent = text;
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
    const locked = problem.kind === "key";
    showProblem(locked ? problem.text : `${problem.text} Trying again …`);
    if (locked && byId("key-form").hidden) {
      byId("key-form").hidden = false;
      byId("key").focus();
    }
  }
  showState();
}

function showSpoken(turn) {
  byId("spoken").textContent = `${(turn.playedSamples / RATE_HZ).toFixed(1)} s`;
}

/** What a stop left unspoken can be spoken after all. */
function offerRest(base, outcome) {
  rest = outcome?.remaining.trim() ? { text: outcome.remaining, base } : null;
  byId("rest").hidden = !rest;
}

function showProblem(text) {
  byId("problem").textContent = text;
}

function milliseconds(ms) {
  return ms === null ? "–" : `${Math.round(ms)} ms`;
}

showState();
conversation.connect();
fetch("/webrtc").then(
  ({ ok }) => (byId("webrtc").hidden = !ok), // a worker may be told not to offer it
  () => {},
);
