"""Features of prompt audio: speech tokens, mel spectrogram and speaker embedding.

Runs resampling and the two ONNX prompt models of a bundle. Their inputs are passed by position because the names differ
between releases. Whether a prompt is usable is decided in audio/prompt.py.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tts_worker.audio.decode import Recording
from tts_worker.audio.window import UNITS_PER_S, Window
from tts_worker.engine.cosyvoice.bundle.config import V1
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.execution.onnx_providers import (
    CUDA,
    create_session,
    import_onnxruntime,
    select_providers,
)
from tts_worker.engine.cosyvoice.voices.features import WHISPER_RATE_HZ, KaldiFbank, MelSpectrogram, WhisperMel
from tts_worker.errors import BundleError, InvalidRequest, MissingExtra

log = logging.getLogger(__name__)

_OPENING = threading.Lock()  # enrollment and conversion share the models

MIN_RATE_HZ = 16_000
MAX_TOKENIZER_S = 30.0  # limit of the speech tokenizer


@dataclass(frozen=True)
class PromptFeatures:
    """``tokens [N]`` int32, ``mel [M, bins]`` float32, ``embedding [spk]`` float32; ``M == 2 N`` at 25 tokens/s."""

    tokens: Tensor
    mel: Tensor
    embedding: Tensor


class PromptFrontend:
    """The prompt models of one bundle, loaded on first use. Takes 0.1 to 1 s per prompt: not for the request path."""

    def __init__(self, bundle: Bundle, *, threads: int = 1, device: str = "auto") -> None:
        """Prepare to load the models.

        Args:
            bundle: Model directory.
            threads: Threads on a CPU.
            device: ``cpu``, ``cuda`` or ``cuda:N``; ``auto`` selects a GPU if there is one. The models run on a GPU
                only if ONNX Runtime has the CUDA provider.
        """
        mel = bundle.config.mel
        self._bundle = bundle
        self._threads = threads
        self._cuda_device = _cuda_index(device)
        self.sample_rate_hz = mel.sample_rate_hz
        self.mel_spectrogram = MelSpectrogram(
            mel.sample_rate_hz, mel.n_fft, mel.window_samples, mel.hop_samples, mel.bins, mel.fmin_hz, mel.fmax_hz
        )
        self.whisper_mel = WhisperMel()
        self.fbank = KaldiFbank()
        self._sessions: dict[Path, Any] = {}

    def resample(self, recording: Recording, rate_hz: int, *, checked: bool = True) -> Tensor:
        """Resample to ``[1, n]`` at ``rate_hz``.

        Raises:
            InvalidRequest: With ``checked``, the rate is below 16 kHz; the voice would be that of a telephone.
        """
        samples = torch.from_numpy(recording.samples)[None]
        if recording.rate_hz == rate_hz:
            return samples
        if checked:
            check_rate(recording.rate_hz)
        return self._resample(samples, recording.rate_hz, rate_hz)

    def _resample(self, samples: Tensor, from_hz: int, to_hz: int) -> Tensor:
        try:
            import soxr
        except ImportError:
            raise MissingExtra("resampling prompt audio", "cosyvoice") from None
        out = soxr.resample(samples[0].numpy(), from_hz, to_hz, quality="VHQ")
        return torch.from_numpy(np.ascontiguousarray(out, dtype=np.float32))[None]

    def mel(self, recording: Recording) -> Tensor:
        """Mel spectrogram ``[M, bins]``, one frame per hop."""
        samples = _check_length(self.resample(recording, self.sample_rate_hz), self.mel_spectrogram.least_samples)
        return self.mel_spectrogram(samples)[0]

    def window_tokens(self, window: Window) -> tuple[int, ...]:
        """Speech tokens of the new audio of a window of source audio. Raises as ``tokens``."""
        tokens_per_unit = self._bundle.config.token_rate_hz // UNITS_PER_S
        first = window.first_unit * tokens_per_unit
        end = None if window.units is None else first + window.units * tokens_per_unit
        ids: list[int] = self.tokens(window.recording, checked=False)[first:end].tolist()
        return tuple(ids)

    def tokens(self, recording: Recording, *, checked: bool = True) -> Tensor:
        """Speech tokens ``[N]`` int32, about 25 per second (50 of CosyVoice-300M). ``checked``: as for ``resample``.

        Raises:
            InvalidRequest: The audio is longer than 30 s.
            BundleError: The model produced ids outside the flow's vocabulary.
        """
        if recording.seconds > MAX_TOKENIZER_S:
            raise InvalidRequest(
                f"the audio is {recording.seconds:.1f} s long; at most {MAX_TOKENIZER_S:g} s can be tokenized"
            )
        samples = _check_length(self.resample(recording, WHISPER_RATE_HZ, checked=checked), WhisperMel.least_samples)
        features = self.whisper_mel(samples)
        length = np.array([features.shape[2]], dtype=np.int32)
        file = self._bundle.speech_tokenizer
        ids = torch.from_numpy(self._run(file, features.numpy(), length).reshape(-1).astype(np.int32))
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < self._bundle.config.flow.vocab):
            raise BundleError(f"{file}: produces speech tokens outside this model's vocabulary; is it the right file?")
        return ids

    def embedding(self, recording: Recording) -> Tensor:
        """Speaker embedding ``[spk]``, not normalized (the flow normalizes it)."""
        features = self.fbank(_check_length(self.resample(recording, WHISPER_RATE_HZ), KaldiFbank.window))
        features = features - features.mean(dim=0, keepdim=True)
        file = self._bundle.campplus
        out = torch.from_numpy(self._run(file, features[None].numpy()).reshape(-1).astype(np.float32))
        size = self._bundle.config.flow.spk_embed
        if out.shape != (size,) or not bool(out.isfinite().all()):
            raise BundleError(f"{file}: does not output {size} finite numbers; is it damaged or from another model?")
        return out

    def prompt(self, recording: Recording) -> PromptFeatures:
        """All features of a prompt; tokens and mel are trimmed to the same duration, except for CosyVoice-300M."""
        tokens = self.tokens(recording)
        mel = self.mel(recording)
        config = self._bundle.config
        if config.family == V1:  # the flow stretches the tokens to the frames
            return PromptFeatures(tokens, mel, self.embedding(recording))
        ratio = config.flow.frames_per_token
        length = min(mel.shape[0] // ratio, tokens.shape[0])
        return PromptFeatures(tokens[:length], mel[: ratio * length], self.embedding(recording))

    def _run(self, file: Path, *inputs: np.ndarray) -> np.ndarray:
        """Run the model in ``file`` on positional ``inputs`` and return its first output."""
        with _OPENING:
            if file not in self._sessions:
                self._sessions[file] = self._open(file, self._cuda_device)
        session = self._sessions[file]
        names = [value.name for value in session.get_inputs()]
        if len(names) != len(inputs):
            raise BundleError(f"{file}: takes {len(names)} inputs, not {len(inputs)}; is it from another model?")
        given = dict(zip(names, inputs, strict=True))
        try:
            if CUDA in session.get_providers():
                try:
                    return np.asarray(session.run(None, given)[0])
                except Exception as error:  # such as a full device
                    log.warning("%s: fails on the GPU (%s), continuing on the CPU", file.name, _reason(error))
                    session = self._sessions[file] = self._open(file, None)
            return np.asarray(session.run(None, given)[0])
        except Exception as error:  # onnxruntime's errors share no public base
            raise BundleError(
                f"{file}: fails on a prompt ({type(error).__name__}); is it from another model?"
            ) from None

    def _open(self, file: Path, cuda_device: int | None) -> Any:
        onnxruntime = import_onnxruntime()
        if not file.is_file():
            raise BundleError(f"{file}: is missing; without it no voice can be added")
        # Not TensorRT: every length of a prompt would take an engine.
        providers = select_providers(onnxruntime.get_available_providers(), cuda_device)
        try:
            return create_session(onnxruntime, str(file), providers, self._threads)
        except Exception as error:  # onnxruntime's errors share no public base
            if len(providers) == 1:
                raise BundleError(f"{file}: onnxruntime cannot load it ({type(error).__name__})") from None
            log.warning("%s: cannot be loaded on the GPU (%s), using the CPU", file.name, _reason(error))
        return self._open(file, None)


def check_rate(rate_hz: int) -> None:
    """Raise InvalidRequest for a rate below 16 kHz: the voice would be that of a telephone."""
    if rate_hz < MIN_RATE_HZ:
        raise InvalidRequest(f"the sample rate of the audio is {rate_hz} Hz; a prompt needs at least {MIN_RATE_HZ} Hz")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}"


def _cuda_index(device: str) -> int | None:
    """Return the index of a GPU, or None for the CPU."""
    if device == "auto":
        return 0 if torch.cuda.is_available() else None
    chosen = torch.device(device)
    return (chosen.index or 0) if chosen.type == "cuda" else None


def _check_length(samples: Tensor, min_samples: int) -> Tensor:
    if samples.shape[1] < min_samples:
        raise InvalidRequest("the audio is shorter than 0.1 s")
    return samples
