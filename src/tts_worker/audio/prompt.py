"""Preparation of a voice prompt: 3 to 30 s of speech, measured, trimmed and brought to a normal level.

``NOT_CHECKED`` lists what no figure tells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.decode import Recording
from tts_worker.audio.pcm import Floats
from tts_worker.audio.trim import TrimOptions, speech_range
from tts_worker.errors import InvalidRequest
from tts_worker.text.characters import spoken_weight

MIN_PROMPT_S = 3.0
MAX_PROMPT_S = 30.0
"""Limit of the speech tokenizers; every synthesis step attends to the whole prompt."""
SILENT_DBFS = -50.0
TARGET_DBFS = -22.0
TOLERANCE_DB = 6.0
MAX_GAIN_DB = 30.0
MAX_PEAK = 0.95
CLIPPED = 0.999
CLIPPED_SHARE = (0.001, 0.05)  # above the first the voice gets a note, above the second the recording is refused
SNR_DB = (20.0, 8.0)  # below the first the voice gets a note, below the second the recording is refused
MAX_SNR_DB = 96.0
# Rates of a transcript in Latin letters: outside the first the voice gets a note, outside the second it is refused.
LETTERS_PER_S = (6.0, 25.0), (2.0, 35.0)
SPEECH_BELOW_LOUD_DB = 35.0  # anything quieter than the loud parts by more than this is not speech

NOT_CHECKED = ("who speaks", "music", "reverberation", "the words of the transcript")
"""What no figure of a recording tells."""


@dataclass(frozen=True)
class PromptFigures:
    """What was measured of a recording.

    Attributes:
        seconds: Duration of the speech.
        level_dbfs: Level of the speech.
        clipped_share: Samples at full scale.
        snr_db: Level of the speech over the quietest tenth of it, an estimate: speech without any pause reads as noise.
        chars_per_s: Rate of the transcript; None without one.
        letters_per_s: The same in spoken Latin letters; a Han character, a Hangul syllable and a digit are three.
        speaker_similarity: Least cosine similarity of the speaker embeddings of two parts; None if not measured.
    """

    seconds: float
    level_dbfs: float
    clipped_share: float
    snr_db: float
    chars_per_s: float | None = None
    letters_per_s: float | None = None
    speaker_similarity: float | None = None


def measure(speech: Recording, transcript: str) -> PromptFigures:
    """Measure the trimmed speech of a recording."""
    power = _window_power(speech.samples, speech.rate_hz)
    level_dbfs = _levels(speech.samples, speech.rate_hz)[1]
    noise_dbfs = 10 * float(np.log10(np.percentile(power, 10) + 1e-12))
    characters = len(transcript.replace(" ", ""))
    return PromptFigures(
        seconds=speech.seconds,
        level_dbfs=level_dbfs,
        clipped_share=float((np.abs(speech.samples) >= CLIPPED).mean()),
        snr_db=min(MAX_SNR_DB, level_dbfs - noise_dbfs),
        chars_per_s=characters / speech.seconds if characters else None,
        letters_per_s=sum(map(spoken_weight, transcript)) / speech.seconds if characters else None,
    )


def judge(figures: PromptFigures) -> tuple[str, ...]:
    """Return notes about a doubtful recording.

    Raises:
        InvalidRequest: The recording would make a bad voice; the message names the figure and its limit.
    """
    notes = []
    clipped = 100 * figures.clipped_share
    if figures.clipped_share > CLIPPED_SHARE[1]:
        raise InvalidRequest(
            f"the audio is clipped: {clipped:.1f} % of the samples are at full scale, at most "
            f"{100 * CLIPPED_SHARE[1]:g} % are accepted; record it again at a lower level"
        )
    if figures.clipped_share > CLIPPED_SHARE[0]:
        notes.append(f"the audio is clipped ({clipped:.1f} % of the samples): record it again at a lower level")
    if figures.snr_db < SNR_DB[1]:
        raise InvalidRequest(
            f"the audio is noisy: the speech is {figures.snr_db:.1f} dB above the background, at least "
            f"{SNR_DB[1]:g} dB are needed"
        )
    if figures.snr_db < SNR_DB[0]:
        notes.append(f"the background is only {figures.snr_db:.1f} dB below the speech: the voice may sound noisy")
    return (*notes, *_judge_transcript(figures))


def _judge_transcript(figures: PromptFigures) -> tuple[str, ...]:
    rate = figures.chars_per_s
    letters = figures.letters_per_s
    if rate is None or letters is None:
        return ()
    size = letters / rate or 1.0  # of a character, in letters
    (few, many), (least, most) = LETTERS_PER_S
    found = f"{rate:.1f} characters per second of speech"
    if not least <= letters <= most:
        limit = f"at least {least / size:.3g}" if letters < least else f"at most {most / size:.3g}"
        raise InvalidRequest(f"the transcript does not match the audio: it has {found}, {limit} are plausible")
    if few <= letters <= many:
        return ()
    size_word, said = ("short", "all that") if letters < few else ("long", "only what")
    return (f"the transcript may be too {size_word} for the audio ({found}): is it {said} is said?",)


def windows(speech: Recording, seconds: float) -> list[Recording]:
    """Cut the speech into parts of ``seconds``, without a shorter rest."""
    size = int(seconds * speech.rate_hz)
    return [
        replace(speech, samples=speech.samples[start : start + size])
        for start in range(0, len(speech.samples) - size + 1, size)
    ]


def usable_speech(recording: Recording) -> tuple[Recording, float]:
    """Trim a recording to its speech and normalize the level.

    Returns:
        The speech, and the gain in dB that was applied to it.

    Raises:
        InvalidRequest: The recording is too long, silent or has too little speech.
    """
    if recording.seconds > MAX_PROMPT_S:
        raise InvalidRequest(
            f"the audio is {recording.seconds:.1f} s long; use {MIN_PROMPT_S:g} to {MAX_PROMPT_S:g} s of clear speech"
        )
    samples = recording.samples - recording.samples.mean(dtype=np.float64).astype(np.float32)
    loud_dbfs, speech_dbfs = _levels(samples, recording.rate_hz)
    if loud_dbfs < SILENT_DBFS:
        level = f"{loud_dbfs:.0f} dBFS" if loud_dbfs > -100 else "no level at all"
        raise InvalidRequest(
            f"the audio is silent or nearly silent: its loudest parts have {level}, at least {SILENT_DBFS:g} dBFS are "
            "needed; check that it is the right channel"
        )
    options = TrimOptions(loud_dbfs - SPEECH_BELOW_LOUD_DB, 10, 100, 200, recording.rate_hz)
    start, end = speech_range(samples, options) or (0, 0)
    samples = samples[start:end]
    speech = Recording(samples, recording.rate_hz)
    if speech.seconds < MIN_PROMPT_S:
        raise InvalidRequest(
            f"the audio has {speech.seconds:.1f} s of speech; use {MIN_PROMPT_S:g} to {MAX_PROMPT_S:g} s"
        )
    if abs(speech_dbfs - TARGET_DBFS) <= TOLERANCE_DB:
        return speech, 0.0
    headroom_db = 20 * np.log10(MAX_PEAK / float(np.abs(samples).max()))
    gain_db = float(min(TARGET_DBFS - speech_dbfs, MAX_GAIN_DB, max(headroom_db, 0.0)))
    return replace(speech, samples=samples * np.float32(10 ** (gain_db / 20))), gain_db


def _levels(samples: Floats, rate_hz: int) -> tuple[float, float]:
    """Measure, in dBFS, the loudest 20 ms windows (98th percentile, to ignore clicks) and the mean of the speech."""
    power = _window_power(samples, rate_hz)
    if not len(power):
        return -np.inf, -np.inf
    loud = np.percentile(power, 98)
    speech = power[power >= loud * 10 ** (-SPEECH_BELOW_LOUD_DB / 20)].mean()
    return 10 * float(np.log10(loud + 1e-12)), 10 * float(np.log10(speech + 1e-12))


def _window_power(samples: Floats, rate_hz: int) -> NDArray[np.float64]:
    """Mean power of windows of 20 ms."""
    window = max(1, rate_hz // 50)
    squares = np.square(samples[: len(samples) // window * window], dtype=np.float64)
    power: NDArray[np.float64] = squares.reshape(-1, window).mean(axis=1)
    return power
