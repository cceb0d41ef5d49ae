"""Times of words from the durations of their phonemes and the power of the audio."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.types import WordTiming

FRAME_SAMPLES = 300
"""12.5 ms at 24 kHz: one column of hibari's spectra."""

_ONSET_SEARCH_FRAMES = 6
"""A word that begins at most this long (75 ms) after a pause begins where the pause ends."""


def word_times(
    phrase: Phrase, ends: NDArray[np.int64], power: NDArray[np.float32], begin: int, end: int
) -> tuple[WordTiming, ...]:
    """Compute word timestamps from the durations that the network used.

    The durations count pauses as part of the adjacent word; pauses visible in ``power`` are removed.

    Args:
        phrase: The phrase, of L phoneme ids.
        ends: Where each phoneme ends ``[L]``, in samples of the network's audio.
        power: Power of each frame ``[F]``; a frame above 1 is audible.
        begin: First sample of the audio that is used; the result counts from it.
        end: End of that audio.
    """
    times: list[WordTiming] = []
    previous_end = 0
    for word in phrase.words:
        first = max(0, int(ends[word.first_id - 1]) // FRAME_SAMPLES)
        last = max(0, int(ends[max(word.first_id, word.end_id) - 1]) // FRAME_SAMPLES)
        audible = np.flatnonzero(power[first:last] > 1)
        if len(audible):
            last = first + int(audible[-1]) + 1
            first = _onset(power, first + int(audible[0]), previous_end)
        previous_end = max(previous_end, last)
        earliest = times[-1].end_sample if times else 0
        start_sample = max(earliest, min(first * FRAME_SAMPLES, end) - begin)
        end_sample = max(start_sample, min(last * FRAME_SAMPLES, end) - begin)
        times.append(WordTiming(word.start_char, word.end_char, start_sample, end_sample))
    return tuple(times)


def _onset(power: NDArray[np.float32], frame: int, previous_end: int) -> int:
    """Return the frame at which the audio around an audible ``frame`` begins: the one after the last quiet frame.

    The search covers 75 ms before ``frame``, or more if the previous word ends earlier. A gap of that width without a
    quiet frame is not a pause: its quietest frame then separates the two words.
    """
    begin = max(0, frame - _ONSET_SEARCH_FRAMES)
    wide = 0 < previous_end < begin
    if wide:
        begin = previous_end
    before = power[begin:frame]
    quiet = np.flatnonzero(before <= 1)
    if len(quiet):
        return begin + int(quiet[-1]) + 1
    return begin + int(before.argmin()) + 1 if wide else frame
