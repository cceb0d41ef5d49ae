"""A phrase becomes sound, block by block: network, trimming, vocoder, and the times of its words.

Owns what lies between phoneme ids and the samples that may leave: where a phrase's speech begins and ends, which is
read off the spectra before a sample is made, and where in it every word does. Knows no credit, no other phrase and no
clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats, fade_in, fade_out
from tts_worker.engine.hibari_model import FRAME_SAMPLES, HibariModel, Spectra
from tts_worker.engine.hibari_text import Phrase
from tts_worker.engine.hibari_vocoder import Vocoder
from tts_worker.errors import SynthesisFailed
from tts_worker.types import SAMPLE_RATE_HZ, Boundary, WordTiming

PRE_ROLL_SAMPLES = SAMPLE_RATE_HZ // 50
POST_ROLL_SAMPLES = SAMPLE_RATE_HZ // 25
"""Of the 300 ms of near-silence before the speech of a raw phrase 20 ms stay, of the 450 ms after it 40 ms."""

_FADE_SAMPLES = SAMPLE_RATE_HZ // 200
_FIRST_BLOCK_FRAMES = 24  # some 200 ms that can be heard: the first sound waits for a millisecond of vocoding
_BLOCK_FRAMES = 80  # one second

_WARM_UP_FRAMES = 3  # of the vocoder, which leaves the first frame out and hears from two frames before

_QUIET_DBFS = -50.0
_SPECTRAL_LEVEL_DB = -60.0
"""RMS of the sound of a frame over the power of its spectra as ``_frame_power`` sums them (measured; it puts the first
and last loud frame where the waveform has them, to one frame)."""

_SOUND_LEAD_SAMPLES = SAMPLE_RATE_HZ // 40
"""At normal pace phonemes sound 25 to 37 ms before the place that their durations give them (word onsets after pauses,
seen in the waveform)."""

_ONSET_REACH_FRAMES = 6
"""A word that begins so shortly (75 ms) after a pause begins where the pause ends."""


@dataclass(frozen=True, slots=True)
class Block:
    """Sound of a phrase ``[N]``, and the words that begin in this or later blocks, told once, in samples from the
    first sample of the phrase's first block."""

    sound: Floats
    words: tuple[WordTiming, ...]


class Speech:
    """One phrase on its way to sound. The blocks depend on the phrase, the pace and the generator alone.

    ``samples`` is how long the phrase will be: 0 if the network says it in silence.
    """

    def __init__(self, model: HibariModel, phrase: Phrase, speed: float, noise: np.random.Generator) -> None:
        self._model = model
        self._phrase = phrase
        self._speed = speed
        spectra = self._predict()
        power = _frame_power(spectra)
        heard = np.flatnonzero(power > 1)
        self._end = self._begin = 0
        if len(heard):
            last_sample = (spectra.frames - 2) * FRAME_SAMPLES  # the vocoder's
            self._begin = max(0, int(heard[0]) * FRAME_SAMPLES - PRE_ROLL_SAMPLES)
            self._end = min(last_sample, (int(heard[-1]) + 1) * FRAME_SAMPLES + POST_ROLL_SAMPLES)
        self.samples = max(0, self._end - self._begin)
        self._words = _word_times(phrase, spectra, speed, power, self._begin, self._end)
        self._vocoder = Vocoder(spectra, noise, max(0, self._begin // FRAME_SAMPLES - _WARM_UP_FRAMES))
        self._made = 0

    @property
    def boundary(self) -> Boundary:
        """Which pause follows."""
        return self._phrase.boundary

    @property
    def finished(self) -> bool:
        return self._made >= self.samples

    @property
    def parked(self) -> bool:
        return self._vocoder.parked

    def park(self) -> None:
        """Give the spectra's memory back; the next block predicts them anew."""
        self._vocoder.park()

    def next_block(self) -> Block:
        """A second of sound, less at first. Raises SynthesisFailed if the network gave something that is no sound."""
        if self._vocoder.parked:
            self._vocoder.unpark(self._predict())
        position = self._vocoder.position_samples
        raw = self._vocoder.render(_BLOCK_FRAMES if self._made else _FIRST_BLOCK_FRAMES)
        if not np.all(np.isfinite(raw)):
            raise SynthesisFailed("the voice model gave values that are no sound; try again, or another text")
        sound = raw[max(0, self._begin - position) : max(0, self._end - position)]
        words: tuple[WordTiming, ...] = ()
        if not self._made:
            sound = fade_in(sound, _FADE_SAMPLES)
            words = self._words
        self._made += len(sound)
        if self.finished:
            sound = fade_out(sound, _FADE_SAMPLES)
        return Block(sound, words)

    def _predict(self) -> Spectra:
        return self._model.predict(self._phrase.ids, self._speed)


def _frame_power(spectra: Spectra) -> NDArray[np.float32]:
    """Estimate the power of each frame from its three branches in every fourth frequency bin.

    Returns:
        ``[F] float32``, in units of the threshold: a frame above 1 is audible.
    """
    some = slice(None, None, 4)
    # Harmonics only sound where there is a pitch; between them the pulses' spectrum is empty (hence about a third).
    power = 0.3 * np.exp(2 * spectra.harmonic[some]).sum(axis=0) * (spectra.f0_hz > 0)
    power += np.exp(2 * spectra.noise[some]).sum(axis=0)
    power += np.exp(2 * spectra.free[some]).sum(axis=0)
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
    """When the words sound, from the durations that the network itself used, in samples from ``begin``.

    The durations count the pauses around a word as part of it; these are taken off where they can be seen.
    """
    ends = np.cumsum(spectra.duration_frames) * FRAME_SAMPLES
    lead = round(_SOUND_LEAD_SAMPLES / speed)
    times: list[WordTiming] = []
    previous_end = 0
    for mark in phrase.marks:
        first = (int(ends[mark.first - 1]) - lead) // FRAME_SAMPLES
        last = (int(ends[max(mark.first, mark.last) - 1]) - lead) // FRAME_SAMPLES
        first = max(0, first)
        last = max(0, last)
        heard = np.flatnonzero(power[first:last] > 1)
        if len(heard):
            first, last = _onset(power, first + int(heard[0]), previous_end), first + int(heard[-1]) + 1
        previous_end = max(previous_end, last)
        earliest = times[-1].end_sample if times else 0
        start_sample = max(earliest, min(first * FRAME_SAMPLES, end) - begin)
        end_sample = max(start_sample, min(last * FRAME_SAMPLES, end) - begin)
        times.append(WordTiming(mark.start_char, mark.end_char, start_sample, end_sample))
    return tuple(times)


def _onset(power: NDArray[np.float32], frame: int, previous_end: int) -> int:
    """Return the frame at which the audio around an audible ``frame`` begins: the one after the last quiet frame.

    It is looked for shortly before, or up to the previous word where that is further off. A gap so wide without a quiet
    frame is no pause: its quietest frame parts the two words.
    """
    begin = max(0, frame - _ONSET_REACH_FRAMES)
    wide = 0 < previous_end < begin
    if wide:
        begin = previous_end
    before = power[begin:frame]
    quiet = np.flatnonzero(before <= 1)
    if len(quiet):
        return begin + int(quiet[-1]) + 1
    return begin + int(before.argmin()) + 1 if wide else frame
