"""An offline LiveKit agent: fake language model, VAD, STT and speaker around the real framework, plugin and worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from livekit.agents import Agent, AgentSession, llm, stt, vad
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, NOT_GIVEN
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities, TextOutput
from livekit.agents.voice.transcription import TranscriptSynchronizer

from livekit import rtc


class ScriptedLLM(llm.LLM):
    """Streams the next of ``replies`` in small tokens; a reply ``tool:name`` calls that tool instead."""

    def __init__(self, replies: list[str]) -> None:
        super().__init__()
        self.replies = replies

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[Any] | None = None,
        conn_options: Any = DEFAULT_API_CONNECT_OPTIONS,
        parallel_tool_calls: Any = NOT_GIVEN,
        tool_choice: Any = NOT_GIVEN,
        extra_kwargs: Any = NOT_GIVEN,
    ) -> llm.LLMStream:
        return _ScriptedStream(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=conn_options)


class _ScriptedStream(llm.LLMStream):
    async def _run(self) -> None:
        assert isinstance(self._llm, ScriptedLLM)
        reply = self._llm.replies.pop(0)
        if reply.startswith("tool:"):
            call = llm.FunctionToolCall(name=reply[5:], arguments="{}", call_id="call-1")
            self._event_ch.send_nowait(
                llm.ChatChunk(id="r", delta=llm.ChoiceDelta(role="assistant", tool_calls=[call]))
            )
            return
        for start in range(0, len(reply), 4):
            delta = llm.ChoiceDelta(role="assistant", content=reply[start : start + 4])
            self._event_ch.send_nowait(llm.ChatChunk(id="r", delta=delta))
            await asyncio.sleep(0)


class FakeVAD(vad.VAD):
    """Voice activity detection driven by the test."""

    def __init__(self) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=0.05))
        self.streams: list[_FakeVADStream] = []

    def stream(self) -> vad.VADStream:
        self.streams.append(_FakeVADStream(self))
        return self.streams[-1]

    def start_speech(self, speech_s: float = 1.0) -> None:
        """Report user speech that has lasted for ``speech_s`` seconds."""
        self._emit(vad.VADEventType.START_OF_SPEECH, speech_s, 0.0, speaking=True)
        self._emit(vad.VADEventType.INFERENCE_DONE, speech_s, 0.0, speaking=True)

    def end_speech(self) -> None:
        """Report that the user has stopped speaking."""
        self._emit(vad.VADEventType.END_OF_SPEECH, 0.5, 0.5, speaking=False)

    def _emit(self, kind: vad.VADEventType, speech_s: float, silence_s: float, *, speaking: bool) -> None:
        event = vad.VADEvent(
            type=kind,
            samples_index=0,
            timestamp=0.0,
            speech_duration=speech_s,
            silence_duration=silence_s,
            speaking=speaking,
            raw_accumulated_speech=speech_s,
            raw_accumulated_silence=silence_s,
        )
        for stream in self.streams:
            stream.emit(event)


class _FakeVADStream(vad.VADStream):
    def emit(self, event: vad.VADEvent) -> None:
        if not self._event_ch.closed:
            self._event_ch.send_nowait(event)

    async def _main_task(self) -> None:
        async for _ in self._input_ch:
            pass


class FakeSTT(stt.STT):
    """Speech recognition driven by the test."""

    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=False))
        self.streams: list[_FakeSpeechStream] = []

    async def _recognize_impl(self, buffer: Any, *, language: Any = NOT_GIVEN, conn_options: Any) -> stt.SpeechEvent:
        raise NotImplementedError("only streams are used")

    def stream(self, *, language: Any = NOT_GIVEN, conn_options: Any = DEFAULT_API_CONNECT_OPTIONS) -> Any:
        self.streams.append(_FakeSpeechStream(stt=self, conn_options=conn_options))
        return self.streams[-1]

    def transcribe(self, text: str) -> None:
        """Report a final transcript of the user."""
        data = stt.SpeechData(language="en", text=text)  # type: ignore[arg-type]
        for stream in self.streams:
            stream.emit(stt.SpeechEvent(stt.SpeechEventType.FINAL_TRANSCRIPT, alternatives=[data]))


class _FakeSpeechStream(stt.RecognizeStream):
    def emit(self, event: stt.SpeechEvent) -> None:
        if not self._event_ch.closed:
            self._event_ch.send_nowait(event)

    async def _run(self) -> None:
        async for _ in self._input_ch:
            pass


class SilentInput(AudioInput):
    """An audio input without any frames; user speech is reported by ``FakeVAD`` and ``FakeSTT``."""

    def __init__(self) -> None:
        super().__init__(label="microphone")

    async def __anext__(self) -> rtc.AudioFrame:
        await asyncio.Event().wait()
        raise StopAsyncIteration


class TranscriptOutput(TextOutput):
    """Collects the transcript shown to the user."""

    def __init__(self) -> None:
        super().__init__(label="transcript", next_in_chain=None)
        self.text = ""

    async def capture_text(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


class FakeSpeaker(AudioOutput):
    """Plays by the event loop's clock, pauses sample-exactly, and records the played samples of every segment.

    Attributes:
        played: PCM played of each finished segment.
        interrupted: Whether each finished segment was interrupted.
        underrun_s: Total time in which the buffer was empty within a segment.
        playback_started: Set while a segment plays.
        paused: Set once the speaker was paused.
    """

    def __init__(self, *, can_pause: bool = True, speed: float = 1.0) -> None:
        super().__init__(label="loudspeaker", capabilities=AudioOutputCapabilities(pause=can_pause), sample_rate=24_000)
        self.played: list[bytes] = []
        self.interrupted: list[bool] = []
        self.underrun_s = 0.0
        self.playback_started = asyncio.Event()
        self.paused = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._speed = speed
        self._pcm = bytearray()
        self._played_s = 0.0  # when the clock was last stopped
        self._since_s: float | None = None  # start time of the running clock
        self._paused = False
        self._complete = False
        self._open = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def captured_s(self) -> float:
        return len(self._pcm) / 48_000

    @property
    def position_s(self) -> float:
        """Playback position in the segment."""
        running_s = 0.0 if self._since_s is None else (self._loop.time() - self._since_s) * self._speed
        return min(self._played_s + running_s, self.captured_s)

    async def wait_position(self, position_s: float) -> None:
        """Wait until playback reaches ``position_s`` in the segment."""
        await self.playback_started.wait()
        if (left_s := position_s - self.position_s) > 0:
            await asyncio.sleep(left_s / self._speed)  # checked again: the buffer may underrun, or playback be paused
            await self.wait_position(position_s)

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self._open:
            self._open = True
            self._complete = False
            self._pcm = bytearray()
            self._played_s = 0.0
            self._since_s = None
            self.on_playback_started(created_at=time.time())  # the synchronizer uses this clock
            self.playback_started.set()
        self._stop_clock()  # accounts for an underrun before this frame
        self._pcm += frame.data.tobytes()
        self._run_clock()

    def flush(self) -> None:
        super().flush()
        if self._open:
            self._complete = True
            self._run_clock()

    def clear_buffer(self) -> None:
        if self._open:
            self._finish(interrupted=True)

    def pause(self) -> None:
        self.paused.set()
        self._paused = True
        self._stop_clock()

    def resume(self) -> None:
        self._paused = False
        if self._open:
            self._run_clock()

    def _stop_clock(self) -> None:
        if self._since_s is not None:
            running_s = (self._loop.time() - self._since_s) * self._speed
            self.underrun_s += max(0.0, self._played_s + running_s - self.captured_s)
        self._played_s = self.position_s
        self._since_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run_clock(self) -> None:
        self._stop_clock()
        if self._paused:
            return
        self._since_s = self._loop.time()
        if self._complete:
            left_s = (self.captured_s - self._played_s) / self._speed
            self._timer = self._loop.call_later(left_s, lambda: self._finish(interrupted=False))

    def _finish(self, *, interrupted: bool) -> None:
        position_s = self.position_s if interrupted else self.captured_s
        self._stop_clock()
        self._open = False
        self.playback_started.clear()
        self.played.append(bytes(self._pcm[: int(position_s * 24_000) * 2]))
        self.interrupted.append(interrupted)
        self.on_playback_finished(playback_position=position_s, interrupted=interrupted)


class AgentHarness:
    """A running agent with its fakes, errors and state changes."""

    def __init__(
        self,
        session: AgentSession[Any],
        speaker: FakeSpeaker,
        fake_vad: FakeVAD,
        fake_stt: FakeSTT,
        transcript: TranscriptOutput,
    ) -> None:
        self.session = session
        self.speaker = speaker
        self.vad = fake_vad
        self.stt = fake_stt
        self.transcript = transcript
        self.errors: list[Any] = []
        self.states: list[str] = []
        self.false_interruptions: list[bool] = []
        session.on("error", self.errors.append)
        session.on("agent_state_changed", lambda event: self.states.append(event.new_state))
        session.on("agent_false_interruption", lambda event: self.false_interruptions.append(event.resumed))

    async def wait_turns(self, count: int) -> None:
        """Wait until the agent has completed ``count`` turns."""
        changed = asyncio.Event()
        self.session.on("conversation_item_added", lambda event: changed.set())
        while len(self.turns) < count:
            changed.clear()
            await changed.wait()

    @property
    def turns(self) -> list[tuple[str, bool]]:
        """Text of the agent's turns in its chat history, and whether each was interrupted."""
        items = self.session.history.items
        return [
            (item.text_content or "", item.interrupted)
            for item in items
            if item.type == "message" and item.role == "assistant"
        ]


@asynccontextmanager
async def run_agent(
    voice: Any,
    replies: list[str],
    *,
    can_pause: bool = True,
    speed: float = 1.0,
    agent: Agent | None = None,
    conn_options: Any = NOT_GIVEN,
    sink: AudioOutput | None = None,
) -> AsyncIterator[AgentHarness]:
    """Run an ``AgentSession`` with ``voice`` and fakes; ``sink`` replaces the fake speaker."""
    fake_vad = FakeVAD()
    fake_stt = FakeSTT()
    transcript = TranscriptOutput()
    speaker = FakeSpeaker(can_pause=can_pause, speed=speed)
    session: AgentSession[Any] = AgentSession(
        stt=fake_stt,
        vad=fake_vad,
        llm=ScriptedLLM(replies),
        tts=voice,
        use_tts_aligned_transcript=True,
        conn_options=conn_options,
        session_close_transcript_timeout=0.05,
        aec_warmup_duration=None,  # otherwise interruptions are ignored in the first seconds
        turn_handling={
            "turn_detection": "vad",
            "endpointing": {"min_delay": 0.05, "max_delay": 0.2},
            "interruption": {"mode": "vad", "min_duration": 0.1, "false_interruption_timeout": 0.4},
        },
    )
    synchronizer = TranscriptSynchronizer(
        next_in_chain_audio=sink or speaker, next_in_chain_text=transcript, speed=speed
    )
    session.input.audio = SilentInput()
    session.output.audio = synchronizer.audio_output
    session.output.transcription = synchronizer.text_output
    harness = AgentHarness(session, speaker, fake_vad, fake_stt, transcript)
    try:
        await session.start(agent or Agent(instructions="Answer."), record=False)
        yield harness
    finally:
        await session.aclose()
        await synchronizer.aclose()
