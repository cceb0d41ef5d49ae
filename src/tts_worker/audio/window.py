"""A part of source audio, as the speech tokenizer takes it for a voice conversion."""

from __future__ import annotations

from dataclasses import dataclass

from tts_worker.audio.decode import Recording

UNITS_PER_S = 25
"""Windows begin and end at multiples of 40 ms, the duration of one or two speech tokens."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the source audio.

    Attributes:
        recording: The audio with what surrounds it.
        first_unit: Units of 40 ms before the new audio.
        units: Units of new audio; None for all that follows.
        new_s: Duration of the new audio.
    """

    recording: Recording
    first_unit: int
    units: int | None
    new_s: float
