/**
 * Programs that speak a text with the settings of the page, in several languages, ready to be copied.
 *
 * Each is complete but for the API key, which is read from the environment and never written into a program.
 * It knows neither the page nor the network. Offers: LANGUAGES, codeFor.
 */

/** @typedef {{origin: string, text: string, settings: object, hasKey: boolean}} Request */

const KEY_VARIABLE = "TTS_WORKER_API_KEY";

/** A string literal for Python and JavaScript: both read JSON's. */
const literal = (value) => JSON.stringify(value);
const shellQuoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const webSocketUrl = (origin) => origin.replace(/^http/, "ws");

/** The fields of `POST /v1/audio/speech`. */
export function speechRequest(text, { voice, speed, seed, instruct }) {
  return {
    input: text,
    ...(voice ? { voice } : {}),
    ...(speed === 1 ? {} : { speed }),
    ...(seed ? { seed } : {}),
    ...(instruct ? { instructions: instruct } : {}),
  };
}

/** Keyword arguments of a Python client, without those at their defaults. */
function keywords({ voice, speed, seed, instruct }) {
  const named = { voice, speed: speed === 1 ? null : speed, seed: seed || null, instruct };
  return Object.entries(named)
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => `, ${name}=${literal(value)}`)
    .join("");
}

const pythonKey = (hasKey) => (hasKey ? `, api_key=os.environ["${KEY_VARIABLE}"]` : "");
const pythonImports = (hasKey) => (hasKey ? "import os\n\n" : "");

function curl({ origin, text, settings, hasKey }) {
  const body = { ...speechRequest(text, settings), response_format: "wav" };
  return [
    `curl ${shellQuoted(`${origin}/v1/audio/speech`)}`,
    ...(hasKey ? [`-H "Authorization: Bearer $${KEY_VARIABLE}"`] : []),
    "-H 'Content-Type: application/json'",
    `-d ${shellQuoted(literal(body))}`,
    "--fail-with-body --output speech.wav",
  ].join(" \\\n  ");
}

function python({ origin, text, settings, hasKey }) {
  return `${pythonImports(hasKey)}import tts_worker

with tts_worker.TTS(${literal(webSocketUrl(origin))}${pythonKey(hasKey)}${keywords(settings)}) as tts:
    speech = tts.speak(${literal(text)})
    speech.save("speech.wav")
    print(speech.words)
`;
}

function javascript({ origin, text, settings, hasKey }) {
  const { voice, speed, seed, instruct } = settings;
  const start = { type: "start", voice: voice ?? undefined, speed, seed, instruct };
  const protocols = hasKey ? `["tts-worker", \`key.\${process.env.${KEY_VARIABLE}}\`]` : `["tts-worker"]`;
  return `const socket = new WebSocket(${literal(`${webSocketUrl(origin)}/v1/stream`)}, ${protocols});
socket.binaryType = "arraybuffer";
const chunks = []; // s16le at 24 kHz, as it is spoken

socket.onopen = () => {
  socket.send(JSON.stringify(${literal(start)}));
  socket.send(JSON.stringify({ type: "text", text: ${literal(text)}, end: true }));
};
socket.onmessage = ({ data }) => {
  if (data instanceof ArrayBuffer) {
    chunks.push(data); // play it
    return;
  }
  const message = JSON.parse(data);
  if (message.type === "words") console.log(message.words);
  if (["done", "truncated", "error", "rejected"].includes(message.type)) {
    console.log(message);
    socket.close();
  }
};
// To interrupt: socket.send(JSON.stringify({ type: "stop" }))
`;
}

function livekit({ origin, text, settings, hasKey }) {
  return `${pythonImports(hasKey)}from livekit.agents import Agent, AgentSession, JobContext
from livekit.plugins import tts_worker


async def entrypoint(ctx: JobContext) -> None:
    voice = tts_worker.TTS(${literal(webSocketUrl(origin))}${pythonKey(hasKey)}${keywords(settings)})
    session = AgentSession(tts=voice, use_tts_aligned_transcript=True)  # and your stt, llm and vad
    await session.start(Agent(instructions="Be brief."), room=ctx.room)
    voice.attach(session)
    session.say(${literal(text)})
`;
}

function pipecat({ origin, text, settings, hasKey }) {
  return `${pythonImports(hasKey)}from pipecat.frames.frames import TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from tts_worker.integrations.pipecat import TTSWorkerTTSService

tts = TTSWorkerTTSService(${literal(webSocketUrl(origin))}${pythonKey(hasKey)}${keywords(settings)})
pipeline = Pipeline([tts])  # between your llm and transport.output()
greeting = TTSSpeakFrame(${literal(text)})  # await task.queue_frame(greeting)
`;
}

export const LANGUAGES = { curl, Python: python, JavaScript: javascript, LiveKit: livekit, pipecat };

/** The program in one of LANGUAGES. @param {string} language @param {Request} request */
export function codeFor(language, request) {
  return LANGUAGES[language](request);
}
