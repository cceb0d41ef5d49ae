"""Adapts the LiveKit plugin to the ``Session`` interface, driven the way an agent drives it.

An utterance is a stream of the plugin; PAUSE and RESUME are the calls of ``attach``; STOP is an interruption
(``aclose``, not awaited). LiveKit re-frames and buffers audio, so frames and positions differ from the worker's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from livekit.agents import APIConnectOptions, APIError
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT

from livekit.plugins.tts_worker import TTS
from tts_worker.client import Client, OpenedSession, SessionOptions
from tts_worker.errors import ErrorCode, ErrorInfo, IllegalCommand, SessionClosed
from tts_worker.protocol.session import OutputReader
from tts_worker.text.decoding import TextDecoder
from tts_worker.types import (
    Acknowledged,
    ChunkMeta,
    ControlName,
    Ended,
    Expression,
    Outcome,
    Output,
    PcmFrame,
    Receipt,
    Started,
    State,
    SynthesisParams,
    UtteranceKey,
    Word,
    Words,
)


@dataclass(eq=False)
class _Utterance:
    key: UtteranceKey
    stream: Any
    decoder: TextDecoder = field(default_factory=TextDecoder)
    text: str = ""
    text_ended: bool = False
    queue: deque[Output] = field(default_factory=deque)
    samples: int = 0
    transcribed_chars: int = 0
    stop_reason: str | None = None
    is_reported: bool = False
    task: asyncio.Task[None] | None = None


class LiveKitSession(OutputReader):
    """One conversation on one plugin object."""

    sample_rate_hz = 24_000

    def __init__(self, client: Client, options: SessionOptions, timeout_s: float) -> None:
        self.voice = TTS(client=client)
        self.voice.options = options
        self._connect_options = APIConnectOptions(max_retry=0, timeout=timeout_s)
        self._closing: set[asyncio.Future[None]] = set()
        self.id = f"livekit-{id(self):x}"
        self._live: deque[_Utterance] = deque()
        self._notices: deque[Output] = deque()
        self._stops: deque[tuple[Acknowledged, list[_Utterance]]] = deque()  # and the utterances that they end
        self._generation = 0
        self._paused = False
        self._closed = False
        self._wakeup = asyncio.Event()

    @property
    def state(self) -> State:
        if self._closed:
            return State.CLOSED
        return (State.PAUSED if self._paused else State.SPEAKING) if self._live else State.IDLE

    def _require_open(self) -> None:
        if self._closed:
            raise SessionClosed("closed")

    def _open_utterance(self) -> _Utterance | None:
        return self._live[-1] if self._live and not self._live[-1].text_ended else None

    def speak(self, text: str | bytes) -> UtteranceKey:
        self._require_open()
        utterance = self._open_utterance()
        if utterance is None:
            self._generation += 1
            stream = self.voice.stream(conn_options=self._connect_options)
            utterance = _Utterance(UtteranceKey(self.id, self._generation), stream)
            options = self.voice.options
            params = SynthesisParams(options.voice or "tone", options.speed, options.seed)
            utterance.queue.append(Started(utterance.key, params))
            utterance.task = asyncio.create_task(self._receive(utterance))
            self._live.append(utterance)
        complete = utterance.decoder.feed(text)
        utterance.text += complete
        utterance.stream.push_text(complete)
        return utterance.key

    def flush(self) -> None:
        raise NotImplementedError("a flush ends LiveKit's segment")

    def end_text(self) -> None:
        self._require_open()
        utterance = self._open_utterance()
        if utterance is None:
            raise IllegalCommand("no utterance is open")
        utterance.text_ended = True
        rest = utterance.decoder.end()
        utterance.text += rest
        utterance.stream.push_text(rest)
        utterance.stream.end_input()

    def pause(self) -> Acknowledged:
        self._require_open()
        return self._acknowledge(ControlName.PAUSE, self.state is State.SPEAKING, self.voice.pause, paused=True)

    def resume(self) -> Acknowledged:
        self._require_open()
        return self._acknowledge(ControlName.RESUME, self.state is State.PAUSED, self.voice.resume, paused=False)

    def _acknowledge(self, command: ControlName, applied: bool, act: Any, *, paused: bool) -> Acknowledged:
        if applied:
            act()
            self._paused = paused
        head = self._live[0] if self._live else None
        position_samples = head.samples - sum(f.samples for f in head.queue if isinstance(f, PcmFrame)) if head else 0
        acknowledged = Acknowledged(command, applied, head.key if head else None, position_samples)
        self._notices.append(acknowledged)
        self._wakeup.set()
        return acknowledged

    def stop(
        self, reason: str = "stop", played_samples: int | None = None, key: UtteranceKey | None = None
    ) -> Acknowledged:
        self._require_open()
        acknowledged = Acknowledged(ControlName.STOP, bool(self._live), self._live[0].key if self._live else None)
        self._stops.append((acknowledged, list(self._live)))
        for utterance in self._live:
            utterance.stop_reason = reason
            if not any(isinstance(item, Ended) for item in utterance.queue):
                self._closing.add(asyncio.ensure_future(utterance.stream.aclose()))
            started = [item for item in utterance.queue if isinstance(item, Started)]
            self._notices.extend(started)
            if utterance.task is not None and utterance.task.done():
                self._notices.append(_stopped(utterance, None))
                utterance.is_reported = True
        self._live.clear()
        self._paused = False
        self._wakeup.set()
        return acknowledged

    def played(self, samples: int, key: UtteranceKey | None = None) -> None:
        raise NotImplementedError("LiveKit's audio sink counts the played samples")

    def express(self, expression: Expression) -> None:
        raise NotImplementedError("LiveKit has no such command")

    def configure(self, params: SynthesisParams) -> None:
        self.voice.update_options(voice=params.voice, speed=params.speed)

    def close(self, reason: str = "closed") -> None:
        if not self._closed:
            for utterance in self._live:
                utterance.stop_reason = reason
                self._notices.append(_stopped(utterance, None))
                utterance.is_reported = True
                self._closing.add(asyncio.ensure_future(utterance.stream.aclose()))
            self._live.clear()
            self._closed = True
            self._wakeup.set()

    async def _receive(self, utterance: _Utterance) -> None:
        error: APIError | None = None
        receipts: list[Receipt] = []
        voice = self.voice
        on_receipt = receipts.append
        try:
            voice.on("receipt", on_receipt)
            async for event in utterance.stream:
                for part in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT) or []:
                    self._on_transcript(utterance, part)
                pcm = event.frame.data.tobytes()
                meta = ChunkMeta(0, 0, 0, utterance.samples, 0.0)
                utterance.queue.append(PcmFrame(utterance.key, 0, utterance.samples, pcm, meta))
                utterance.samples += len(pcm) // 2
                self._wakeup.set()
        except APIError as failure:
            error = failure
        finally:
            voice.off("receipt", on_receipt)
        matching = [r for r in receipts if r.text_spoken + r.text_remaining == utterance.text]
        self._end(utterance, matching[0] if matching else None, error)

    def _on_transcript(self, utterance: _Utterance, part: Any) -> None:
        start_char = utterance.transcribed_chars
        end_char = start_char + len(part)
        utterance.transcribed_chars = end_char
        start_sample, end_sample = (round(at_s * 24_000) for at_s in (part.start_time, part.end_time))
        if part.strip():
            word = Word(str(part), start_char, end_char, start_sample, end_sample)
            utterance.queue.append(Words(utterance.key, (word,)))

    def _end(self, utterance: _Utterance, receipt: Receipt | None, error: APIError | None) -> None:
        if utterance.is_reported:
            return
        if utterance.stop_reason is not None:
            self._notices.append(_stopped(utterance, receipt))
            utterance.is_reported = True
        elif receipt is not None and receipt.reason == "pause_timeout":
            self._live.remove(utterance)
            self._paused = False
            self._notices.append(Ended(utterance.key, Outcome.STOPPED, receipt))
        elif error is not None:
            receipt = receipt or Receipt("internal", 0, 0, None, "", utterance.text)
            info = ErrorInfo(ErrorCode(receipt.reason), error.message, error.retryable)
            utterance.queue.append(Ended(utterance.key, Outcome.ERROR, receipt, info))
        else:
            receipt = receipt or Receipt("nothing_to_speak", 0, 0, None, utterance.text, "")
            utterance.queue.append(Ended(utterance.key, Outcome.DONE, receipt))
        self._wakeup.set()

    def poll(self) -> Output | None:
        if self._notices:
            return self._notices.popleft()
        if self._stops and all(utterance.is_reported for utterance in self._stops[0][1]):
            return self._stops.popleft()[0]
        if not self._live or not self._live[0].queue:
            return None
        if self._paused and isinstance(self._live[0].queue[0], PcmFrame | Words):
            return None
        item = self._live[0].queue.popleft()
        if isinstance(item, Ended):
            self._live.popleft()
            self._paused = self._paused and bool(self._live)
        return item

    async def wait(self) -> None:
        self._wakeup.clear()
        await self._wakeup.wait()


def _stopped(utterance: _Utterance, receipt: Receipt | None) -> Ended:
    """The terminal event of a stopped utterance.

    The plugin's playback report counts the audio given to LiveKit, which may be more than LiveKit played.
    """
    receipt = receipt or Receipt("stop", 0, 0, None, "", utterance.text)
    return Ended(utterance.key, Outcome.STOPPED, replace(receipt, reason=utterance.stop_reason or "stop"))


class LiveKitClient:
    """Opens LiveKit sessions on a client's connections."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._sessions: list[LiveKitSession] = []

    async def open(self, options: SessionOptions) -> OpenedSession:
        self._sessions.append(LiveKitSession(self._client, options, self._timeout_s))
        return OpenedSession(self._sessions[-1], connection_reused=True)

    async def close(self) -> None:
        for session in self._sessions:
            session.close()
            if session._closing:
                await asyncio.wait(session._closing)
            await session.voice.aclose()
