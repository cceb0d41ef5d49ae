"""What the language model reads: text ids, speech ids and special vectors, in one sequence."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """Type of an input, as it is sent to the device. The special ones come last, in the order of their vectors."""

    TEXT = 0
    SPEECH = 1
    SOS = 2
    TASK = 3
    SPEAKER = 4  # the speaker's vector, in CosyVoice-300M


Item = tuple[Kind, int]
"""An input; the number of a special one is 0."""
