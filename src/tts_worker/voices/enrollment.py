"""Voices enrolled from a recording that a request brings.

Validates the recording, names the voice by a hash of recording and transcript, bounds how many voices are held and
enrolled at a time, and evicts unused ones. ``Enroller`` computes the voice on a thread. The recording is not stored.
Voices that stay are stored by ``library``.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from tts_worker.audio.decode import RECORDING_FORMATS, Recording, read_recording
from tts_worker.audio.prompt import MAX_PROMPT_S, PromptFigures
from tts_worker.audio.window import Window
from tts_worker.errors import InvalidRequest, NotReady, OverCapacity, TextTooLong
from tts_worker.voices.files import Voice

MAX_PROMPT_BYTES = 8 << 20  # 30 s of 48 kHz 16-bit stereo is 5.5 MiB
MAX_PROMPT_CHARS = 1_000
_RETRY_AFTER_S = 2.0


class Enroller(Protocol):
    """Analyzes recordings for one engine. All methods but one run on one thread, never concurrently."""

    def enroll(self, name: str, recording: Recording, transcript: str) -> None:
        """Compute the voice and make it available to the engine under ``name``. Takes up to a second.

        Raises:
            InvalidRequest: The recording is unsuitable; the message says why.
        """
        ...

    def compute(self, recording: Recording, transcript: str) -> tuple[Voice, PromptFigures]:
        """Compute a voice without making it available, and what was measured of the recording. Raises as ``enroll``."""
        ...

    def speech_tokens(self, window: Window) -> tuple[int, ...]:
        """Return the speech tokens of the new audio of a window. Unlike the others, it runs on a separate thread.

        Raises:
            InvalidRequest: The audio is unsuitable; the message says why.
        """
        ...

    def forget(self, name: str) -> None:
        """Delete the voice; no new utterance will use it. An unknown name is ignored."""
        ...


@dataclass(frozen=True, slots=True)
class EnrolledVoice:
    """``evicted``: voices deleted to bound the number of unused ones."""

    name: str
    evicted: tuple[str, ...] = ()


class Enrollment:
    """The voices enrolled with one engine. All methods belong to one event loop.

    Args:
        enroller: Computes the voices.
        max_unused: Voices that stay stored while no session uses them.
        max_pending: Recordings that may wait for enrollment at the same time.
    """

    def __init__(self, enroller: Enroller, *, max_unused: int = 64, max_pending: int = 16) -> None:
        self._enroller = enroller
        self._max_unused = max_unused
        self._max_pending = max_pending
        self._enrolled: dict[str, None] = {}  # insertion order: longest unused first
        self._pending: dict[str, asyncio.Task[None]] = {}
        self._computing: set[asyncio.Future[tuple[Voice, PromptFigures]]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="enrollment")
        # Not behind an enrollment, which may take a second: conversions are heard while they run.
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="conversion")

    @property
    def pending(self) -> int:
        """Number of enrollments under way."""
        return len(self._pending) + len(self._computing)

    async def voice_of(
        self, recording: bytes, transcript: str, in_use: Callable[[], Collection[str]] = tuple
    ) -> EnrolledVoice:
        """Enroll a recording, or return the voice already enrolled from it.

        Concurrent callers with the same recording share one enrollment; cancelling one caller does not cancel it.

        Args:
            recording: A whole audio file.
            transcript: The words spoken in it, or an empty string.
            in_use: Returns the voices that must not be evicted, once the new one is enrolled.

        Raises:
            InvalidRequest: No audio, damaged, too short or too long.
            TextTooLong: The recording or the transcript is too large.
            OverCapacity: Too many recordings are waiting.
            NotReady: The engine is being unloaded.
        """
        check_size(recording, transcript)
        name = await asyncio.to_thread(voice_name, recording, transcript)  # hashes megabytes: not on the event loop
        if name in self._enrolled:
            self._enrolled[name] = self._enrolled.pop(name)
            return EnrolledVoice(name)
        if name not in self._pending:
            self._check_pending()
            task = asyncio.create_task(self._enroll(name, recording, transcript), name=f"enroll-{name}")
            self._pending[name] = task
            task.add_done_callback(lambda done: self._on_enrolled(name, done))
        task = self._pending[name]
        await asyncio.wait({task})
        if task.cancelled():
            raise NotReady("the engine is being unloaded", retry_after_s=_RETRY_AFTER_S)
        task.result()
        return EnrolledVoice(name, self._evict_unused({*in_use(), name}))

    async def compute(self, recording: bytes, transcript: str) -> tuple[Voice, PromptFigures]:
        """Compute the voice of a recording, and what was measured of it, without storing it.

        Raises as ``voice_of`` does. A cancelled caller does not stop the computation.
        """
        check_size(recording, transcript)
        self._check_pending()
        work = self._thread.submit(lambda: self._enroller.compute(read_prompt(recording), transcript))
        future = asyncio.wrap_future(work)
        self._computing.add(future)
        future.add_done_callback(self._on_computed)
        await asyncio.wait({future})  # unlike awaiting the future, a cancellation here does not reach it
        if future.cancelled():
            raise NotReady("the engine is being unloaded", retry_after_s=_RETRY_AFTER_S)
        return future.result()

    async def speech_tokens(self, window: Window) -> tuple[int, ...]:
        """Return the speech tokens of a window of source audio. Windows of all conversions take turns.

        Raises:
            InvalidRequest: The audio is unsuitable; the message says why.
            NotReady: The engine is being unloaded.
        """
        future = asyncio.wrap_future(self._tokenizing.submit(self._enroller.speech_tokens, window))
        await asyncio.wait({future})  # a cancelled caller does not stop the computation
        if future.cancelled():
            raise NotReady("the engine is being unloaded", retry_after_s=_RETRY_AFTER_S)
        return future.result()

    def _on_computed(self, future: asyncio.Future[tuple[Voice, PromptFigures]]) -> None:
        self._computing.discard(future)
        if not future.cancelled():
            future.exception()  # the caller may be gone

    def _check_pending(self) -> None:
        if self.pending >= self._max_pending:
            raise OverCapacity("too many recordings wait for enrollment", retry_after_s=_RETRY_AFTER_S)

    async def _enroll(self, name: str, recording: bytes, transcript: str) -> None:
        def enroll() -> None:
            self._enroller.enroll(name, read_prompt(recording), transcript)

        await asyncio.get_running_loop().run_in_executor(self._thread, enroll)

    def _on_enrolled(self, name: str, task: asyncio.Task[None]) -> None:
        del self._pending[name]
        if not task.cancelled() and task.exception() is None:
            self._enrolled[name] = None

    def _evict_unused(self, in_use: Collection[str]) -> tuple[str, ...]:
        excess = max(0, len(self._enrolled) - self._max_unused)
        evicted = tuple(name for name in self._enrolled if name not in in_use)[:excess]
        for name in evicted:
            del self._enrolled[name]
            self._thread.submit(self._enroller.forget, name)
        return evicted

    def close(self) -> None:
        """Cancel pending enrollments without waiting for the one that runs."""
        for task in self._pending.values():
            task.cancel()
        for thread in (self._thread, self._tokenizing):
            thread.shutdown(wait=False, cancel_futures=True)


def voice_name(recording: bytes, transcript: str) -> str:
    """Name of the voice: a hash of recording and transcript, deterministic and not reversible."""
    digest = hashlib.sha256(len(recording).to_bytes(8, "big"))
    digest.update(recording)
    digest.update(transcript.encode("utf-8", "surrogatepass"))
    return f"prompt-{digest.hexdigest()[:32]}"


def check_size(recording: bytes, transcript: str) -> None:
    """Check the sizes of an upload.

    Raises:
        InvalidRequest: The recording is empty.
        TextTooLong: The recording or the transcript is too large.
    """
    if not recording:
        raise InvalidRequest(f"the recording is empty: send a {RECORDING_FORMATS} file")
    if len(recording) > MAX_PROMPT_BYTES:
        raise TextTooLong(f"a recording may have at most {MAX_PROMPT_BYTES >> 20} MiB")
    if len(transcript) > MAX_PROMPT_CHARS:
        raise TextTooLong(f"the transcript of a recording may have at most {MAX_PROMPT_CHARS} characters")


def read_prompt(recording: bytes) -> Recording:
    """Decode a recording; blocks.

    Raises:
        InvalidRequest: The file cannot be read, or its rate, channels or duration are out of range.
    """
    return read_recording(recording, MAX_PROMPT_S)
