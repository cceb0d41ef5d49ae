"""Voice conversion as sessions know it: where the speech comes from, and what turns it into speech tokens.

The engine renders speech tokens as it renders those of its language model. What cuts the source audio and drives the
session is the feature ``conversion``; without it the worker converts nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tts_worker.audio.window import Window
from tts_worker.session.session import LocalSession
from tts_worker.types import Output

SPEECH_TOKENS = "speech_tokens"
"""Capability of engines that convert."""

Tokenize = Callable[[Window], Awaitable[tuple[int, ...]]]
"""Returns the speech tokens of a window."""


@dataclass(frozen=True, slots=True)
class LiveSource:
    """Source audio that is still being spoken: mono s16le."""

    parts: AsyncIterator[bytes]
    rate_hz: int


@dataclass(frozen=True, slots=True)
class RecordedSource:
    """A whole file, in one of ``RECORDING_FORMATS``."""

    audio: bytes


Source = LiveSource | RecordedSource


class Conversion(Protocol):
    """One conversion on a session, which it owns."""

    session: LocalSession

    def outputs(self) -> AsyncGenerator[Output, None]:
        """Convert the source; yield frames and notices up to the end of the utterance.

        Closing the generator frees the session and stops the conversion.

        Raises:
            TTSWorkerError: The source cannot be converted.
        """


class Converter(Protocol):
    """Converts speech."""

    def convert(
        self, session: LocalSession, source: Source, tokenize: Tokenize, charge: Callable[[float], None]
    ) -> Conversion:
        """Convert a source on a session. ``charge`` is called with the seconds of source audio."""

    def windows(self, recording: bytes | Path) -> Sequence[Window]:
        """Decode a recording, given as a file or its content, and cut it; blocks.

        Raises:
            InvalidRequest: It cannot be read, or is too long.
        """
