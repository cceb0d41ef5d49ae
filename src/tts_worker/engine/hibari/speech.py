"""Synthesis of one phrase in blocks from its spectra: trimming, vocoder and word timestamps.

The speech range is estimated from the spectra before any sample is rendered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats, fade_in, fade_out
from tts_worker.engine.hibari.model import FRAME_SAMPLES, Spectra
from tts_worker.engine.hibari.text import Phrase
from tts_worker.engine.hibari.vocoder import Vocoder
from tts_worker.errors import SynthesisFailed
from tts_worker.types import SAMPLE_RATE_HZ, Boundary, WordTiming

PRE_ROLL_SAMPLES = SAMPLE_RATE_HZ // 50
POST_ROLL_SAMPLES = SAMPLE_RATE_HZ // 25
"""Near-silence retained around speech: 20 of the 300 ms before it and 40 of the 450 ms after it."""

_FADE_SAMPLES = SAMPLE_RATE_HZ // 200
_FIRST_BLOCK_FRAMES = 24  # about 200 ms of audio after 1 ms of vocoding
_BLOCK_FRAMES = 80  # one second

_WARM_UP_FRAMES = 3  # the vocoder skips its first frame, and each sample needs the two frames before it

_QUIET_DBFS = -50.0
_SPECTRAL_LEVEL_DB = -60.0
"""RMS of a frame's audio over the power of its spectra as ``_frame_power`` computes it.

Measured: it places the first and last loud frame where the waveform has them, to one frame.
"""

_PHONEME_LEAD_SAMPLES = SAMPLE_RATE_HZ // 40
"""At normal speed phonemes are audible 25 to 37 ms before the position that their durations give.

Measured at word onsets after pauses in the waveform.
"""

_ONSET_SEARCH_FRAMES = 6
"""A word that begins at most this long (75 ms) after a pause begins where the pause ends."""


@dataclass(frozen=True, slots=True)
class AudioBlock:
    """Part of a phrase.

    Attributes:
        samples: ``[N] float32``.
        words: Words that begin in this or later blocks, each reported once, in samples from the start of the phrase.
    """

    samples: Floats
    words: tuple[WordTiming, ...]


class PhraseSynthesis:
    """Synthesizes one phrase; the blocks depend only on the phrase, the speed and the generator.

    Args:
        phrase: The phrase.
        spectra: What the network predicts for it at ``speed``.
        speed: 1.0 is the normal speed.
        noise: Generates the noise of the vocoder.

    Attributes:
        phrase: The phrase.
        total_samples: Length of the audio; 0 if the network's output is silent.
    """

    def __init__(self, phrase: Phrase, spectra: Spectra, speed: float, noise: np.random.Generator) -> None:
        self.phrase = phrase
        power = _frame_power(spectra)
        audible = np.flatnonzero(power > 1)
        self._end = self._start = 0
        if len(audible):
            last_sample = (spectra.frames - 2) * FRAME_SAMPLES  # end of the vocoder's output
            self._start = max(0, int(audible[0]) * FRAME_SAMPLES - PRE_ROLL_SAMPLES)
            self._end = min(last_sample, (int(audible[-1]) + 1) * FRAME_SAMPLES + POST_ROLL_SAMPLES)
        self.total_samples = max(0, self._end - self._start)
        self._words = _word_times(phrase, spectra, speed, power, self._start, self._end)
        self._vocoder = Vocoder(spectra, noise, max(0, self._start // FRAME_SAMPLES - _WARM_UP_FRAMES))
        self._rendered_samples = 0

    @property
    def boundary(self) -> Boundary:
        """Determines the pause after the phrase."""
        return self.phrase.boundary

    @property
    def finished(self) -> bool:
        return self._rendered_samples >= self.total_samples

    @property
    def suspended(self) -> bool:
        return self._vocoder.suspended

    @property
    def spectra_frames(self) -> int:
        """Length of the spectra in memory."""
        return self._vocoder.spectra_frames

    def suspend(self) -> None:
        """Free the spectra; ``resume`` needs them again before the next block."""
        self._vocoder.suspend()

    def resume(self, spectra: Spectra) -> None:
        """Continue after ``suspend`` with the same spectra, predicted again."""
        self._vocoder.resume(spectra)

    def next_block(self) -> AudioBlock:
        """Render the next second of audio, less in the first block.

        Raises:
            SynthesisFailed: The network's output contains NaN or infinity.
        """
        position = self._vocoder.position_samples
        raw = self._vocoder.render(_BLOCK_FRAMES if self._rendered_samples else _FIRST_BLOCK_FRAMES)
        if not np.all(np.isfinite(raw)):
            raise SynthesisFailed("the voice model produced NaN or infinite samples; try again or change the text")
        samples = raw[max(0, self._start - position) : max(0, self._end - position)]
        words: tuple[WordTiming, ...] = ()
        if not self._rendered_samples:
            samples = fade_in(samples, _FADE_SAMPLES)
            words = self._words
        self._rendered_samples += len(samples)
        if self.finished:
            samples = fade_out(samples, _FADE_SAMPLES)
        return AudioBlock(samples, words)


def _frame_power(spectra: Spectra) -> NDArray[np.float32]:
    """Estimate the power of each frame from its three branches in every fourth frequency bin.

    Returns:
        ``[F] float32``, in units of the threshold: a frame above 1 is audible.
    """
    bins = slice(None, None, 4)
    # Harmonics exist only where there is a pitch; the factor accounts for the empty spectrum between them.
    power = 0.3 * np.exp(2 * spectra.harmonic[bins]).sum(axis=0) * (spectra.f0_hz > 0)
    power += np.exp(2 * spectra.noise[bins]).sum(axis=0)
    power += np.exp(2 * spectra.free[bins]).sum(axis=0)
    threshold = 10.0 ** ((_QUIET_DBFS - _SPECTRAL_LEVEL_DB) / 10) / 4
    return np.asarray(power / threshold, np.float32)


def _word_times(
    phrase: Phrase,
    spectra: Spectra,
    speed: float,
    power: NDArray[np.float32],
    begin: int,
    end: int,
) -> tuple[WordTiming, ...]:
    """Compute word timestamps in samples from ``begin``, from the durations that the network used.

    The durations count pauses as part of the adjacent word; pauses visible in ``power`` are removed.
    """
    ends = np.cumsum(spectra.duration_frames) * FRAME_SAMPLES
    lead = round(_PHONEME_LEAD_SAMPLES / speed)
    times: list[WordTiming] = []
    previous_end = 0
    for word in phrase.words:
        first = (int(ends[word.first_id - 1]) - lead) // FRAME_SAMPLES
        last = (int(ends[max(word.first_id, word.end_id) - 1]) - lead) // FRAME_SAMPLES
        first = max(0, first)
        last = max(0, last)
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
