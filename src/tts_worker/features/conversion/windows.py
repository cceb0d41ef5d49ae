"""Source audio of a voice conversion, cut into the windows that the speech tokenizer takes.

A recording is one window as long as the tokenizer takes it whole, as the reference does. Longer recordings and live
audio are cut where they are quiet. Every window but the first begins with audio that was converted before, and every
one but the last ends with audio that the next one converts, so that the tokenizer knows what surrounds its tokens. The
windows follow from the audio alone, never from the portions in which it arrives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tts_worker.audio.decode import Recording, read_recording
from tts_worker.audio.pcm import Floats, to_float
from tts_worker.audio.window import UNITS_PER_S, Window
from tts_worker.errors import InvalidRequest
from tts_worker.types import BYTES_PER_SAMPLE

MAX_SOURCE_S = 600.0
"""The longest source audio of one conversion."""

MAX_WINDOW_S = 30.0
"""The most that the speech tokenizer takes."""

MIN_RATE_HZ = 8_000
MAX_RATE_HZ = 48_000


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """How audio is cut, in seconds.

    Attributes:
        full_s: New audio of which a window is cut off.
        least_s: Least new audio of that window.
        most_s: Most new audio of that window; with ``ahead_s`` not above ``full_s``.
        context_s: Earlier audio before it.
        ahead_s: Later audio behind it.
    """

    full_s: float
    least_s: float
    most_s: float
    context_s: float
    ahead_s: float


WHOLE = WindowSizes(full_s=MAX_WINDOW_S, least_s=18.0, most_s=26.0, context_s=3.0, ahead_s=0.4)
"""For recordings: the fewest cuts."""

LIVE = WindowSizes(full_s=1.2, least_s=0.6, most_s=1.0, context_s=4.0, ahead_s=0.2)
"""For audio that is converted while it arrives."""


class SourceWindows:
    """Cuts source audio into windows.

    Args:
        rate_hz: Sample rate of the audio.
        sizes: Where to cut.

    Raises:
        InvalidRequest: The sample rate is out of range.
    """

    def __init__(self, rate_hz: int, sizes: WindowSizes) -> None:
        if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
            raise InvalidRequest(f"the sample rate of source audio must be {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz")
        self._rate_hz = rate_hz
        self._unit = round(rate_hz / UNITS_PER_S)
        self._sizes = sizes
        self._audio = np.zeros(0, np.float32)  # the context, then the audio of no window yet
        self._context_units = 0
        self._total_s = 0.0

    def feed(self, samples: Floats) -> list[Window]:
        """Add audio; return the windows that are complete.

        Raises:
            InvalidRequest: The audio is too long.
        """
        self._total_s += len(samples) / self._rate_hz
        if self._total_s > MAX_SOURCE_S:
            raise InvalidRequest(f"source audio may have at most {MAX_SOURCE_S:g} s")
        self._audio = np.concatenate([self._audio, samples])
        windows = []
        while self._is_full:
            windows.append(self._cut())
        return windows

    def end(self) -> list[Window]:
        """Return the last window. Raises InvalidRequest if there was no audio."""
        if not self._total_s:
            raise InvalidRequest("the source audio contains no samples")
        new = len(self._audio) - self._context_units * self._unit
        if not new:
            return []
        return [Window(Recording(self._audio, self._rate_hz), self._context_units, None, new / self._rate_hz)]

    @property
    def _is_full(self) -> bool:
        seconds = len(self._audio) / self._rate_hz
        return seconds - self._context_units / UNITS_PER_S > self._sizes.full_s or seconds > MAX_WINDOW_S

    def _cut(self) -> Window:
        sizes = self._sizes
        least, most, ahead, context = (
            round(seconds * UNITS_PER_S) for seconds in (sizes.least_s, sizes.most_s, sizes.ahead_s, sizes.context_s)
        )
        start = self._context_units
        units = self._audio[(start + least) * self._unit : (start + most) * self._unit].reshape(-1, self._unit)
        quietest = int(np.argmin((units * units).mean(axis=1)))
        end = start + least + quietest + 1
        window = Window(
            Recording(self._audio[: (end + ahead) * self._unit], self._rate_hz),
            start,
            end - start,
            (end - start) / UNITS_PER_S,
        )
        kept = max(0, end - context)
        self._audio = self._audio[kept * self._unit :]
        self._context_units = end - kept
        return window


def recording_windows(audio: bytes | Path) -> list[Window]:
    """Decode a recording, given as a file or its content, and cut it; blocks.

    Raises:
        InvalidRequest: It cannot be read, or is too long.
    """
    recording = read_recording(audio, MAX_SOURCE_S, max_rate_hz=MAX_RATE_HZ)
    windows = SourceWindows(recording.rate_hz, WHOLE)
    return [*windows.feed(recording.samples), *windows.end()]


async def live_windows(parts: AsyncIterator[bytes], rate_hz: int) -> AsyncIterator[Window]:
    """Cut mono s16le while it arrives; a part may end inside a sample.

    Raises:
        InvalidRequest: The rate is out of range, or the audio is empty or too long.
    """
    windows = SourceWindows(rate_hz, LIVE)
    rest = b""
    async for part in parts:
        pcm = rest + part
        size = len(pcm) - len(pcm) % BYTES_PER_SAMPLE
        rest = pcm[size:]
        for window in windows.feed(to_float(pcm[:size])):
            yield window
    for window in windows.end():
        yield window
