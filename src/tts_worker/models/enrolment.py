"""Voices that somebody brings along as a recording: made once, kept while they are used and a while longer.

Owns the name of such a voice (a hash of what it was made from), how many are kept, how many are made at the same time,
and what is checked before any work: size, that it is sound at all, how long. The recording itself is not kept. It must
not know what a voice consists of: ``Enroller`` makes it, on a thread, where the engine finds it by name.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from tts_worker.audio.decode import Recording, check_container, read_recording
from tts_worker.errors import InvalidRequest, NotReady, OverCapacity, TextTooLong

MAX_PROMPT_S = 30.0
MAX_PROMPT_BYTES = 8 << 20  # 30 s of 48 kHz stereo and room for more
MAX_PROMPT_CHARS = 1_000
MAX_RATE_HZ = 192_000
MAX_CHANNELS = 2
_RETRY_AFTER_S = 2.0


class Enroller(Protocol):
    """Makes voices for one engine. Both methods are called on one worker thread, never at the same time."""

    def enrol(self, name: str, recording: Recording, transcript: str) -> None:
        """From now on the engine speaks with this voice. Takes up to a second. Raises InvalidRequest in plain words if
        no good voice can be made of the recording."""
        ...

    def forget(self, name: str) -> None:
        """Nobody will begin to speak with it any more; an unknown name is fine."""
        ...


@dataclass(frozen=True, slots=True)
class EnrolledVoice:
    """``forgotten``: voices that had to go for it."""

    name: str
    forgotten: tuple[str, ...] = ()


class Enrolment:
    """The voices enrolled with one engine. ``kept``: so many stay that nobody uses; ``waiting``: so many recordings may
    wait at the same time. All methods belong to one event loop."""

    def __init__(self, enroller: Enroller, *, kept: int = 64, waiting: int = 16) -> None:
        self._enroller = enroller
        self._kept = kept
        self._waiting = waiting
        self._known: dict[str, None] = {}  # longest unused first
        self._making: dict[str, asyncio.Task[None]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="enrolment")

    @property
    def pending(self) -> int:
        """Voices that are being made."""
        return len(self._making)

    async def voice_of(self, recording: bytes, transcript: str, in_use: Collection[str] = ()) -> EnrolledVoice:
        """The voice of a recording (a whole audio file); ``in_use``: voices that stay. Who stops waiting does not end
        the work that others wait for.

        Raises InvalidRequest (no audio, damaged, too short or long), TextTooLong, OverCapacity.
        """
        check_size(recording, transcript)
        name = await asyncio.to_thread(voice_name, recording, transcript)  # megabytes: not on the event loop
        if name in self._known:
            self._known[name] = self._known.pop(name)
            return EnrolledVoice(name)
        if name not in self._making:
            if len(self._making) >= self._waiting:
                raise OverCapacity("too many recordings wait for enrolment", retry_after_s=_RETRY_AFTER_S)
            task = asyncio.create_task(self._make(name, recording, transcript), name=f"enrol-{name}")
            self._making[name] = task
            task.add_done_callback(lambda done: self._made(name, done))
        task = self._making[name]
        await asyncio.wait({task})
        if task.cancelled():
            raise NotReady("the engine is being unloaded", retry_after_s=_RETRY_AFTER_S)
        task.result()
        return EnrolledVoice(name, self._forget_surplus({*in_use, name}))

    async def _make(self, name: str, recording: bytes, transcript: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._enrol, name, recording, transcript)

    def _enrol(self, name: str, recording: bytes, transcript: str) -> None:
        self._enroller.enrol(name, read_prompt(recording), transcript)

    def _made(self, name: str, task: asyncio.Task[None]) -> None:
        del self._making[name]
        if not task.cancelled() and task.exception() is None:
            self._known[name] = None

    def _forget_surplus(self, staying: Collection[str]) -> tuple[str, ...]:
        surplus = len(self._known) - self._kept
        gone = tuple(name for name in self._known if name not in staying)[: max(0, surplus)]
        for name in gone:
            del self._known[name]
            self._thread.submit(self._enroller.forget, name)
        return gone

    def close(self) -> None:
        """Make no more; what is being made is not waited for."""
        for task in self._making.values():
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)


def voice_name(recording: bytes, transcript: str) -> str:
    """The same for the same bytes and words, and nothing that could be guessed or traced back."""
    digest = hashlib.sha256(len(recording).to_bytes(8, "big"))
    digest.update(recording)
    digest.update(transcript.encode("utf-8", "surrogatepass"))
    return f"prompt-{digest.hexdigest()[:32]}"


def check_size(recording: bytes, transcript: str) -> None:
    """Raises InvalidRequest for nothing, TextTooLong for too much."""
    if not recording:
        raise InvalidRequest("the recording is empty: send a WAV, FLAC, Ogg or MP3 file")
    if len(recording) > MAX_PROMPT_BYTES:
        raise TextTooLong(f"a recording may have at most {MAX_PROMPT_BYTES >> 20} MiB")
    if len(transcript) > MAX_PROMPT_CHARS:
        raise TextTooLong(f"the transcript of a recording may have at most {MAX_PROMPT_CHARS} characters")


def read_prompt(recording: bytes) -> Recording:
    """Decode a recording, whose header is looked at first: a small file may claim to hold gigabytes. Blocks.

    Raises InvalidRequest in plain words.
    """
    import soundfile  # late: most workers never enrol a voice

    check_container(recording)
    try:
        header = soundfile.info(io.BytesIO(recording))
    except (soundfile.LibsndfileError, ValueError, RuntimeError):
        raise InvalidRequest("the recording cannot be read: send a whole WAV, FLAC, Ogg or MP3 file") from None
    if header.samplerate > MAX_RATE_HZ or header.channels > MAX_CHANNELS:
        raise InvalidRequest(f"a recording has at most {MAX_CHANNELS} channels and {MAX_RATE_HZ} samples a second")
    return read_recording(recording, max_s=MAX_PROMPT_S)
