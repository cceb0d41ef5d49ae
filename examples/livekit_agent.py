"""A LiveKit voice agent that uses a tts-worker for speech synthesis.

    pip install ./packages/tts-worker-client ./packages/livekit-plugins-tts-worker
    tts-worker serve &                          # the worker, on this or another machine (TTS_WORKER_URL)
    python examples/livekit_agent.py console    # talk to it in the terminal, or: dev, start

Speech recognition and the language model run on LiveKit Cloud (LIVEKIT_URL, LIVEKIT_API_KEY, LIVEKIT_API_SECRET);
replace them in ``build_session``.
"""

from __future__ import annotations

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, JobProcess, cli, function_tool, inference

from livekit.plugins import tts_worker


class Assistant(Agent):
    def __init__(self) -> None:
        super().__init__(instructions="You are a friendly voice assistant. Answer in one or two short sentences.")

    async def on_enter(self) -> None:
        await self.session.say("Hello! How can I help you?")

    @function_tool
    async def opening_hours(self, day: str) -> str:
        """When the shop is open on a day of the week."""
        return "closed" if day.lower() == "sunday" else "nine to six"


def build_session(voice: tts_worker.TTS) -> AgentSession:
    return AgentSession(
        stt=inference.STT("deepgram/nova-3"),
        llm=inference.LLM("openai/gpt-4.1-mini"),
        tts=voice,
        # The transcript follows the worker's word timestamps; an interrupted answer is cut at the word played.
        use_tts_aligned_transcript=True,
    )


def prewarm(process: JobProcess) -> None:
    process.userdata["voice"] = tts_worker.TTS()  # TTS_WORKER_URL, or ws://127.0.0.1:8080


server = AgentServer(setup_fnc=prewarm)


@server.rtc_session()
async def entrypoint(context: JobContext) -> None:
    voice: tts_worker.TTS = context.proc.userdata["voice"]
    session = build_session(voice)
    await session.start(Assistant(), room=context.room)
    voice.attach(session)  # after a false interruption the worker resumes with the very next sample


if __name__ == "__main__":
    cli.run_app(server)
