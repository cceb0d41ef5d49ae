"""Synthesis of one phrase in blocks from its spectra: trimming, vocoder and word timestamps.

The speech range is estimated from the spectra before any sample is rendered.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import fade_in, fade_out
from tts_worker.engine.cpu.hibari.model import FREE, HARMONIC, NOISE, Spectra
from tts_worker.engine.cpu.hibari.vocoder import Vocoder
from tts_worker.engine.cpu.phrases.expression import speeds_of
from tts_worker.engine.cpu.phrases.network import (
    FADE_SAMPLES,
    POST_ROLL_SAMPLES,
    PRE_ROLL_SAMPLES,
    AudioBlock,
    PhraseSynthesis,
)
from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES, word_times
from tts_worker.errors import SynthesisFailed
from tts_worker.types import SAMPLE_RATE_HZ, WordTiming

_FIRST_BLOCK_FRAMES = 24  # about 200 ms of audio after 1 ms of vocoding
_BLOCK_FRAMES = 80  # one second

_PHONEME_LEAD_SAMPLES = SAMPLE_RATE_HZ // 40
"""At normal speed phonemes are audible 25 to 37 ms before the position that their durations give.

Measured at word onsets after pauses in the waveform.
"""

_WARM_UP_FRAMES = 3  # the vocoder skips its first frame, and each sample needs the two frames before it

_QUIET_DBFS = -50.0
_SPECTRAL_LEVEL_DB = -60.0
"""RMS of a frame's audio over the power of its spectra as ``_frame_power`` computes it.

Measured: it places the first and last loud frame where the waveform has them, to one frame.
"""


class HibariSynthesis(PhraseSynthesis[Spectra]):
    """Synthesizes one phrase; the blocks depend only on the phrase, the speed and the generator.

    Args:
        phrase: The phrase.
        spectra: What the network predicts for it at ``speed``.
        speed: 1.0 is the normal speed; the expressions of the phrase change it.
        noise: Generates the noise of the vocoder.

    Attributes:
        phrase: The phrase.
        total_samples: Length of the audio; 0 if the network's output is silent.
    """

    def __init__(self, phrase: Phrase, spectra: Spectra, speed: float, noise: np.random.Generator) -> None:
        self.phrase = phrase
        self._speed = speed
        self._rendered_samples = 0
        self._start = 0
        self._reported_words = 0
        self._read(spectra)
        self._vocoder = Vocoder(spectra, noise, max(0, self._start // FRAME_SAMPLES - _WARM_UP_FRAMES))

    def _read(self, spectra: Spectra) -> None:
        """Find the end of the audio, its start if it has not begun, and the words."""
        power = _frame_power(spectra)
        audible = np.flatnonzero(power > 1)
        self._end = self._start
        if len(audible):
            last_sample = (spectra.frames - 2) * FRAME_SAMPLES  # end of the vocoder's output
            if not self._rendered_samples:
                self._start = max(0, int(audible[0]) * FRAME_SAMPLES - PRE_ROLL_SAMPLES)
            self._end = min(last_sample, (int(audible[-1]) + 1) * FRAME_SAMPLES + POST_ROLL_SAMPLES)
        self.total_samples = max(self._rendered_samples, self._end - self._start)
        self._ends = np.cumsum(spectra.duration_frames) * FRAME_SAMPLES
        lead = np.rint(_PHONEME_LEAD_SAMPLES / np.asarray(speeds_of(self.phrase, self._speed))).astype(np.int64)
        self._words = word_times(self.phrase, self._ends - lead, power, self._start, self._end)

    @property
    def first_unbegun_word(self) -> int:
        begun = [self._vocoder.has_begun(int(self._ends[word.first_id - 1])) for word in self.phrase.words]
        return sum(begun)

    @property
    def finished(self) -> bool:
        return self._rendered_samples >= self.total_samples

    @property
    def suspended(self) -> bool:
        return self._vocoder.suspended

    @property
    def spectra_frames(self) -> int:
        return self._vocoder.spectra_frames

    def suspend(self) -> None:
        self._vocoder.suspend()

    def resume(self, prediction: Spectra) -> None:
        self._read(prediction)
        self._vocoder.resume(prediction)

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
        if not self._rendered_samples:
            samples = fade_in(samples, FADE_SAMPLES)
        self._rendered_samples += len(samples)
        if self.finished:
            samples = fade_out(samples, FADE_SAMPLES)
        return AudioBlock(samples, self._take_words())

    def _take_words(self) -> tuple[WordTiming, ...]:
        """Return the words that begin in the last block, and at the end all others."""
        first = last = self._reported_words
        while last < len(self._words) and (self.finished or self._words[last].start_sample < self._rendered_samples):
            last += 1
        self._reported_words = last
        return self._words[first:last]


def _frame_power(spectra: Spectra) -> NDArray[np.float32]:
    """Estimate the power of each frame from its three branches in every fourth frequency bin.

    Returns:
        ``[F] float32``, in units of the threshold: a frame above 1 is audible.
    """
    harmonic, noise, free = (np.exp(2 * spectra.parts[:, part, ::4]).sum(axis=1) for part in (HARMONIC, NOISE, FREE))
    # Harmonics exist only where there is a pitch; the factor accounts for the empty spectrum between them.
    power = 0.3 * harmonic * (spectra.f0_hz > 0) + noise + free
    threshold = 10.0 ** ((_QUIET_DBFS - _SPECTRAL_LEVEL_DB) / 10) / 4
    return np.asarray(power / threshold, np.float32)
