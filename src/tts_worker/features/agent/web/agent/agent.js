/**
 * The page of the talking agent: connects its elements to the session (agent-session.js) and the recognition.
 */
import { ConnectionView } from "../connection-view.js";
import { Microphone } from "../microphone.js";
import { explainSkipped, withoutSkipped } from "../utterance.js";
import { AgentSession } from "./agent-session.js";
import { showPhone } from "./phone.js";
import { BrowserRecognition, browserRecognizes, NoRecognition, ServerRecognition } from "./recognition.js";
import { Stage } from "./stage.js";
import { TurnsView } from "./turns-view.js";
import { VoiceChoice } from "./voice-choice.js";

const PHASE_TEXTS = {
  listening: "Your turn.",
  thinking: "Thinking.",
  speaking: "Speaking. Interrupt whenever you like.",
  held: "Paused while you speak.",
  interrupted: "Interrupted.",
};
const RECOGNITION_TEXTS = {
  server: "Speech is recognized by this server.",
  browser: "Speech is recognized by your browser, which may send it to its vendor.",
  none: "Nothing here recognizes speech: your voice interrupts, but its words stay unknown. Type, or start the agent with --whisper.",
};

const byId = (id) => document.getElementById(id);
const turns = new TurnsView(byId("turns"));
const connection = new ConnectionView({ problem: showProblem, connect: () => session.connect(), field: byId("say") });

let serverRecognizes = false;
let browserFailed = false;
let whyReconnected = ""; // what is said between the turns once the conversation continues
let microphone = null;
let recognition = null;

const session = new AgentSession({
  connection: showConnection,
  ready({ model, recognizer, voice, address }, continues) {
    if (continues) {
      turns.note(`${whyReconnected || "Connected again."} The agent remembers what was said, and what you heard.`);
    } else {
      turns.clear();
      showMessages([]);
      byId("report").textContent = "";
    }
    whyReconnected = "";
    voiceChoice.show(voice);
    showPhone(address);
    showEmpty();
    serverRecognizes = recognizer;
    byId("model").textContent = model === "script" ? "It answers from a script." : `It answers with ${model}.`;
    showRecognition();
  },
  phase: showPhase,
  user(turn, text) {
    turns.user(turn, text);
    showEmpty();
  },
  asked(turn, messages) {
    showProblem("");
    showMessages(messages);
  },
  answer: (turn, text) => turns.answer(turn, text),
  words: (turn, words) => turns.words(turn, words),
  heard: (turn, count) => turns.heard(turn, count),
  settled(turn, outcome) {
    turns.settled(turn, outcome);
    byId("report").textContent = explain(outcome);
  },
  silentAfter(ms) {
    byId("silent-after").textContent = `${Math.round(ms)} ms`;
  },
  answeredAfter(ms) {
    byId("answered-after").textContent = `${Math.round(ms)} ms`;
  },
  problem: showProblem,
});

const stage = new Stage({ user: byId("you"), agent: byId("it") }, () => session.analyser);
const voiceChoice = new VoiceChoice(byId("voice-field"), byId("voice"), (voice) => {
  whyReconnected = "Another voice.";
  session.use(voice);
});

function explain({ heard, unheard, skipped }) {
  if (!unheard.trim() && !skipped.length) return "";
  const words = (text) => text.split(/\s+/).filter(Boolean).length;
  const count = `${words(withoutSkipped(heard, skipped))} of ${words(heard) + words(unheard)} words`;
  return `Heard: ${count}. The others are not in its memory.${explainSkipped(heard, skipped)}`;
}

// -- the user ----------------------------------------------------------------------------------------------------------

byId("say-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("say").value.trim();
  if (!text || !connection.connected) return;
  session.prepareAudio();
  session.say(text);
  byId("say").value = "";
});

byId("stop").addEventListener("click", () => {
  if (isEnabled(byId("stop"))) session.interrupt();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && isEnabled(byId("stop"))) session.interrupt();
});

byId("microphone").addEventListener("change", async ({ target }) => {
  showProblem("");
  if (!target.checked) {
    closeMicrophone();
    showPhase(session.phase);
    return;
  }
  session.prepareAudio();
  try {
    await openMicrophone();
  } catch (error) {
    microphoneFailed(error.message);
  }
  showPhase(session.phase);
});

async function openMicrophone() {
  const opening = createRecognition();
  recognition = opening;
  microphone = new Microphone({
    speech: (atMs) => recognition?.voice.speech(atMs),
    silence: () => recognition?.voice.silence(),
    ...(opening.takesAudio && { audio: (pcm) => session.audio(pcm) }),
    level(aboveDb) {
      stage.hear(aboveDb);
      byId("microphone-level").value = aboveDb;
    },
    lost: microphoneFailed,
  });
  await microphone.open();
  if (recognition !== opening) return; // switched off meanwhile
  byId("microphone-level").hidden = false;
  opening.start();
}

function createRecognition() {
  const sampleRate = () => microphone.sampleRate;
  switch (recognitionKind()) {
    case "server":
      return new ServerRecognition(session, sampleRate);
    case "browser":
      return new BrowserRecognition(session, sampleRate, browserRecognitionFailed);
  }
  return new NoRecognition(session, sampleRate);
}

function recognitionKind() {
  if (serverRecognizes) return "server";
  return browserRecognizes && !browserFailed ? "browser" : "none";
}

/** The microphone stays on, and the voice still interrupts. */
function browserRecognitionFailed(reason) {
  browserFailed = true;
  recognition = createRecognition();
  showProblem(reason);
  showRecognition();
}

function closeMicrophone() {
  recognition?.stop();
  microphone?.close();
  recognition = microphone = null;
  byId("microphone-level").hidden = true;
}

function microphoneFailed(problem) {
  closeMicrophone();
  byId("microphone").checked = false;
  showProblem(problem);
}

byId("restart").addEventListener("click", () => {
  session.restart();
  byId("say").focus();
});

addEventListener("pagehide", () => session.close());
addEventListener("pageshow", (event) => {
  if (event.persisted) session.connect();
});

// -- what is shown -----------------------------------------------------------------------------------------------------

function showConnection(state, problem) {
  connection.show(state, problem);
  if (problem) {
    if (!turns.isEmpty) whyReconnected = "The connection was lost, and is back.";
    closeMicrophone();
    byId("microphone").checked = false;
  }
  byId("send").setAttribute("aria-disabled", String(!connection.connected));
  showPhase(session.phase);
}

function showPhase(phase) {
  const { connected } = connection;
  byId("conversation").dataset.phase = connected ? phase : "none";
  const text = connected ? PHASE_TEXTS[phase] : turns.isEmpty ? "" : "Not connected. The conversation is kept.";
  const isUser = connected && (phase === "held" || byId("microphone").checked) && phase !== "speaking";
  stage.show(connected && phase === "speaking" ? "agent" : isUser ? "user" : null);
  if (byId("status").textContent !== text) byId("status").textContent = text;
  byId("stop").setAttribute("aria-disabled", String(!connected || phase === "listening" || phase === "interrupted"));
  if (phase !== "listening" && phase !== "interrupted") byId("report").textContent = "";
  byId("restart").hidden = turns.isEmpty || !connected;
  showEmpty();
}

function showEmpty() {
  byId("turns").hidden = turns.isEmpty;
  byId("empty").hidden = !turns.isEmpty;
}

function showRecognition() {
  byId("recognition").textContent = RECOGNITION_TEXTS[recognitionKind()];
}

/** The messages that the model was sent last: of its turns, only what was heard. */
function showMessages(messages) {
  byId("messages-empty").hidden = messages.length > 0;
  byId("messages").hidden = !messages.length;
  byId("messages").replaceChildren(
    ...messages.map(({ role, content }) => {
      const item = document.createElement("li");
      const name = document.createElement("code");
      name.append(role);
      const text = document.createElement("span");
      text.dir = "auto";
      text.append(content);
      item.append(name, " ", text);
      return item;
    }),
  );
}

function showProblem(text) {
  byId("problem").textContent = text;
}

function isEnabled(button) {
  return button.getAttribute("aria-disabled") !== "true";
}

session.connect();
