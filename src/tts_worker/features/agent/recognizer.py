"""Speech recognition on this machine with faster-whisper. Neither audio nor text is stored or logged."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tts_worker.audio.pcm import Floats, to_float
from tts_worker.errors import ConfigError, MissingExtra

RATE_HZ = 16_000
"""Sample rate of the recognizer."""

_MAX_NO_SPEECH = 0.6
_MAX_THREADS = 4


class Recognizer(Protocol):
    """Turns speech into text."""

    async def recognize(self, pcm: bytes, sample_rate_hz: int) -> str:
        """Return the words in PCM (s16le, mono); nothing if there are none."""
        ...


class WhisperRecognizer:
    """A Whisper model, shared by all conversations; one recognition at a time.

    Create it before serving: loading takes seconds.

    Args:
        model: A directory with a model converted for faster-whisper, or the name of one.
        may_download: Download a named model that is not on this machine.
        language: What is spoken, such as "en"; None detects it.

    Raises:
        MissingExtra: faster-whisper is not installed.
        ConfigError: There is no such model on this machine.
    """

    def __init__(self, model: str, *, may_download: bool = False, language: str | None = None) -> None:
        try:
            from ctranslate2 import get_cuda_device_count
            from faster_whisper import WhisperModel
        except ImportError:
            raise MissingExtra("speech recognition on the server", "whisper") from None
        is_directory = Path(model).is_dir()
        has_gpu = get_cuda_device_count() > 0
        try:
            self._model = WhisperModel(
                model,
                device="cuda" if has_gpu else "cpu",
                compute_type="default" if has_gpu else "int8",
                cpu_threads=_cpu_threads(),
                local_files_only=is_directory or not may_download,
            )
        except Exception as error:
            # The library and its downloader raise errors of many kinds, with long messages.
            hint = "is damaged" if is_directory else "is not on this machine; --whisper-download may fetch it"
            raise ConfigError(f"the Whisper model {model} {hint} ({type(error).__name__})") from None
        self._language = language
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="recognizer")

    async def recognize(self, pcm: bytes, sample_rate_hz: int) -> str:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._recognize, pcm, sample_rate_hz)

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _recognize(self, pcm: bytes, sample_rate_hz: int) -> str:
        samples = resample(pcm, sample_rate_hz)
        # Whisper invents words for noise: its voice detector removes what is no voice.
        segments, _ = self._model.transcribe(
            samples,
            language=self._language,
            beam_size=1,
            condition_on_previous_text=False,
            without_timestamps=True,
            vad_filter=True,
        )
        heard: list[Any] = [segment for segment in segments if segment.no_speech_prob < _MAX_NO_SPEECH]
        return " ".join(segment.text.strip() for segment in heard).strip()


def _cpu_threads() -> int:
    """Leave a core to the voice; with more threads than free cores, recognition takes several times as long."""
    return max(1, min(_MAX_THREADS, (os.cpu_count() or 1) - 1))


def resample(pcm: bytes, sample_rate_hz: int) -> Floats:
    """Convert PCM (s16le, mono) to float samples at the rate of the recognizer."""
    import soxr

    samples = to_float(pcm)
    if sample_rate_hz == RATE_HZ:
        return samples
    return np.asarray(soxr.resample(samples, sample_rate_hz, RATE_HZ), np.float32)
