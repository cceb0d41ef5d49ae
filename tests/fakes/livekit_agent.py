"""An agent without a network: a language model that recites, ears that hear what the test says, a loudspeaker with a
clock. The framework in between is the real one, and so are the plugin and the worker."""

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


class Reciter(llm.LLM):
    """Answers with the next of ``replies``, token by token; a reply ``tool:name`` calls that tool instead."""

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
        return _Recital(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=conn_options)


class _Recital(llm.LLMStream):
    async def _run(self) -> None:
        assert isinstance(self._llm, Reciter)
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


class Ears(vad.VAD):
    """Voice activity, as told by the test."""

    def __init__(self) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=0.05))
        self.streams: list[_EarStream] = []

    def stream(self) -> vad.VADStream:
        self.streams.append(_EarStream(self))
        return self.streams[-1]

    def voice(self, speech_s: float = 1.0) -> None:
        """Somebody begins to talk, and has talked for so long."""
        self._tell(vad.VADEventType.START_OF_SPEECH, speech_s, 0.0, speaking=True)
        self._tell(vad.VADEventType.INFERENCE_DONE, speech_s, 0.0, speaking=True)

    def silence(self) -> None:
        """And stops."""
        self._tell(vad.VADEventType.END_OF_SPEECH, 0.5, 0.5, speaking=False)

    def _tell(self, kind: vad.VADEventType, speech_s: float, silence_s: float, *, speaking: bool) -> None:
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
            stream.tell(event)


class _EarStream(vad.VADStream):
    def tell(self, event: vad.VADEvent) -> None:
        if not self._event_ch.closed:
            self._event_ch.send_nowait(event)

    async def _main_task(self) -> None:
        async for _ in self._input_ch:
            pass


class Scribe(stt.STT):
    """Speech recognition, as told by the test."""

    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=False))
        self.streams: list[_ScribeStream] = []

    async def _recognize_impl(self, buffer: Any, *, language: Any = NOT_GIVEN, conn_options: Any) -> stt.SpeechEvent:
        raise NotImplementedError("only streams are used")

    def stream(self, *, language: Any = NOT_GIVEN, conn_options: Any = DEFAULT_API_CONNECT_OPTIONS) -> Any:
        self.streams.append(_ScribeStream(stt=self, conn_options=conn_options))
        return self.streams[-1]

    def writes(self, text: str) -> None:
        """What somebody said, for good."""
        data = stt.SpeechData(language="en", text=text)  # type: ignore[arg-type]
        for stream in self.streams:
            stream.tell(stt.SpeechEvent(stt.SpeechEventType.FINAL_TRANSCRIPT, alternatives=[data]))


class _ScribeStream(stt.RecognizeStream):
    def tell(self, event: stt.SpeechEvent) -> None:
        if not self._event_ch.closed:
            self._event_ch.send_nowait(event)

    async def _run(self) -> None:
        async for _ in self._input_ch:
            pass


class Microphone(AudioInput):
    """Silence that never comes: whatever is heard, the test tells ``Ears`` and ``Scribe``."""

    def __init__(self) -> None:
        super().__init__(label="microphone")

    async def __anext__(self) -> rtc.AudioFrame:
        await asyncio.Event().wait()
        raise StopAsyncIteration


class Page(TextOutput):
    """The transcript as it appears."""

    def __init__(self) -> None:
        super().__init__(label="page", next_in_chain=None)
        self.text = ""

    async def capture_text(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


class Loudspeaker(AudioOutput):
    """Plays by the loop's clock, can pause sample-exactly, and keeps what was heard of every segment."""

    def __init__(self, *, can_pause: bool = True, speed: float = 1.0) -> None:
        super().__init__(label="loudspeaker", capabilities=AudioOutputCapabilities(pause=can_pause), sample_rate=24_000)
        self.heard: list[bytes] = []
        self.interrupted: list[bool] = []
        self.dry_s = 0.0
        """For how long there was nothing to play where there should have been."""
        self.begun = asyncio.Event()
        self.paused = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._speed = speed
        self._pcm = bytearray()
        self._played_s = 0.0  # up to the last time the clock was stopped
        self._since_s: float | None = None  # when it began to run
        self._paused = False
        self._complete = False
        self._open = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def captured_s(self) -> float:
        return len(self._pcm) / 48_000

    @property
    def position_s(self) -> float:
        """What was heard of the segment."""
        running_s = 0.0 if self._since_s is None else (self._loop.time() - self._since_s) * self._speed
        return min(self._played_s + running_s, self.captured_s)

    async def until(self, position_s: float) -> None:
        """Until so much of the segment was heard."""
        await self.begun.wait()
        if (left_s := position_s - self.position_s) > 0:
            await asyncio.sleep(left_s / self._speed)  # its own clock decides, if it ran dry or was paused
            await self.until(position_s)

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self._open:
            self._open = True
            self._complete = False
            self._pcm = bytearray()
            self._played_s = 0.0
            self._since_s = None
            self.on_playback_started(created_at=time.time())  # the synchronizer goes by this clock
            self.begun.set()
        self._stop_clock()  # if it ran dry, it begins again here
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
            self.dry_s += max(0.0, self._played_s + running_s - self.captured_s)
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
        self.begun.clear()
        self.heard.append(bytes(self._pcm[: int(position_s * 24_000) * 2]))
        self.interrupted.append(interrupted)
        self.on_playback_finished(playback_position=position_s, interrupted=interrupted)


class Stage:
    """A running agent and everything around it."""

    def __init__(
        self, session: AgentSession[Any], speaker: Loudspeaker, ears: Ears, scribe: Scribe, page: Page
    ) -> None:
        self.session = session
        self.speaker = speaker
        self.ears = ears
        self.scribe = scribe
        self.page = page
        self.errors: list[Any] = []
        self.states: list[str] = []
        self.false_interruptions: list[bool] = []
        session.on("error", self.errors.append)
        session.on("agent_state_changed", lambda event: self.states.append(event.new_state))
        session.on("agent_false_interruption", lambda event: self.false_interruptions.append(event.resumed))

    async def until_said(self, count: int) -> None:
        """Until the agent has said so much."""
        changed = asyncio.Event()
        self.session.on("conversation_item_added", lambda event: changed.set())
        while len(self.said) < count:
            changed.clear()
            await changed.wait()

    @property
    def said(self) -> list[tuple[str, bool]]:
        """What the agent believes to have said, and whether it was cut short."""
        items = self.session.history.items
        return [
            (item.text_content or "", item.interrupted)
            for item in items
            if item.type == "message" and item.role == "assistant"
        ]


@asynccontextmanager
async def on_stage(
    voice: Any,
    replies: list[str],
    *,
    can_pause: bool = True,
    speed: float = 1.0,
    agent: Agent | None = None,
    conn_options: Any = NOT_GIVEN,
    sink: AudioOutput | None = None,
) -> AsyncIterator[Stage]:
    """An ``AgentSession`` with ``voice`` that hears and says nothing but what it is told. ``sink`` replaces the
    loudspeaker."""
    ears = Ears()
    scribe = Scribe()
    page = Page()
    speaker = Loudspeaker(can_pause=can_pause, speed=speed)
    session: AgentSession[Any] = AgentSession(
        stt=scribe,
        vad=ears,
        llm=Reciter(replies),
        tts=voice,
        use_tts_aligned_transcript=True,
        conn_options=conn_options,
        session_close_transcript_timeout=0.05,
        aec_warmup_duration=None,  # else nobody is interrupted in the first seconds
        turn_handling={
            "turn_detection": "vad",
            "endpointing": {"min_delay": 0.05, "max_delay": 0.2},
            "interruption": {"mode": "vad", "min_duration": 0.1, "false_interruption_timeout": 0.4},
        },
    )
    synchronizer = TranscriptSynchronizer(next_in_chain_audio=sink or speaker, next_in_chain_text=page, speed=speed)
    session.input.audio = Microphone()
    session.output.audio = synchronizer.audio_output
    session.output.transcription = synchronizer.text_output
    stage = Stage(session, speaker, ears, scribe, page)
    try:
        await session.start(agent or Agent(instructions="Recite."), record=False)
        yield stage
    finally:
        await session.aclose()
        await synchronizer.aclose()
