"""Prompt audio to what the networks are conditioned on: speech tokens, acoustic features, speaker embedding.

Owns resampling and the two ONNX models of a bundle, which are called by position because their names differ
between releases. Two ways: ours (soxr) and, for parity, the reference's (its windowed-sinc resampler).
It must not know what a voice is (voice.py), whether a prompt is good, or text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tts_worker.audio.decode import Recording
from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.features import WHISPER_RATE_HZ, KaldiFbank, MelSpectrogram, SincResampler, WhisperMel
from tts_worker.errors import BundleError, InvalidRequest, MissingExtra

LEAST_RATE_HZ = 16_000
MAX_TOKENIZER_S = 30.0  # the speech tokenizer knows no more


@dataclass(frozen=True)
class PromptFeatures:
    """``tokens [N]`` int32, ``mel [M, bins]`` float32, ``embedding [spk]`` float32. ``M == 2 N`` unless left uncut."""

    tokens: Tensor
    mel: Tensor
    embedding: Tensor


class PromptFrontend:
    """The prompt models of one bundle. Reads them on the first use; not for the request path (0.1-1 s a prompt)."""

    def __init__(self, bundle: Bundle, *, reference: bool = False, cuda: bool = False, threads: int = 1) -> None:
        """``reference``: resample as the reference does. ``cuda``: run the speech tokenizer on the first GPU."""
        mel = bundle.config.mel
        self._bundle = bundle
        self._reference = reference
        self._cuda = cuda
        self._threads = threads
        self.sample_rate_hz = mel.sample_rate_hz
        self.mel_spectrogram = MelSpectrogram(
            mel.sample_rate_hz, mel.n_fft, mel.window_samples, mel.hop_samples, mel.bins, mel.fmin_hz, mel.fmax_hz
        )
        self.whisper_mel = WhisperMel()
        self.fbank = KaldiFbank()
        self._sessions: dict[Path, Any] = {}

    def resample(self, sound: Recording, rate_hz: int) -> Tensor:
        """``[1, n]`` at ``rate_hz``. Raises InvalidRequest below 16 kHz: telephone sound makes a telephone voice."""
        if sound.rate_hz == rate_hz:
            return torch.from_numpy(sound.samples)[None]
        if sound.rate_hz < LEAST_RATE_HZ:
            raise InvalidRequest(
                f"the audio has {sound.rate_hz} samples a second; a prompt needs at least {LEAST_RATE_HZ}"
            )
        if self._reference:
            return SincResampler(sound.rate_hz, rate_hz)(torch.from_numpy(sound.samples)[None])
        try:
            import soxr
        except ImportError:
            raise MissingExtra("resampling prompt audio", "cosyvoice") from None
        out = soxr.resample(sound.samples, sound.rate_hz, rate_hz, quality="VHQ")
        return torch.from_numpy(np.ascontiguousarray(out, dtype=np.float32))[None]

    def mel(self, sound: Recording) -> Tensor:
        """Acoustic features ``[M, bins]``, one frame per hop."""
        samples = self._long_enough(self.resample(sound, self.sample_rate_hz), self.mel_spectrogram.least_samples)
        return self.mel_spectrogram(samples)[0]

    def tokens(self, sound: Recording) -> Tensor:
        """Speech tokens ``[N]`` int32, about 25 a second. Raises InvalidRequest beyond 30 s, BundleError if the model
        gives ids that the flow has no row for."""
        if sound.seconds > MAX_TOKENIZER_S:
            raise InvalidRequest(
                f"the audio is {sound.seconds:.1f} s long; at most {MAX_TOKENIZER_S:g} s can be tokenized"
            )
        features = self.whisper_mel(self._long_enough(self.resample(sound, WHISPER_RATE_HZ), WhisperMel.least_samples))
        length = np.array([features.shape[2]], dtype=np.int32)
        file = self._bundle.speech_tokenizer
        ids = torch.from_numpy(self._run(file, features.numpy(), length).reshape(-1).astype(np.int32))
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < self._bundle.config.flow.vocab):
            raise BundleError(f"{file}: gives speech tokens that this model does not have; is it of another model?")
        return ids

    def embedding(self, sound: Recording) -> Tensor:
        """Speaker embedding ``[spk]``, as the model gives it (the flow normalises it)."""
        features = self.fbank(self._long_enough(self.resample(sound, WHISPER_RATE_HZ), KaldiFbank.window))
        features = features - features.mean(dim=0, keepdim=True)
        file = self._bundle.campplus
        out = torch.from_numpy(self._run(file, features[None].numpy()).reshape(-1).astype(np.float32))
        size = self._bundle.config.flow.spk_embed
        if out.shape != (size,) or not bool(out.isfinite().all()):
            raise BundleError(f"{file}: does not give {size} finite numbers; is it damaged, or of another model?")
        return out

    def prompt(self, sound: Recording, *, uncut: bool = False) -> PromptFeatures:
        """Everything about a prompt, tokens and mel cut to the same length unless ``uncut`` (as the reference leaves
        them in voice conversion)."""
        tokens = self.tokens(sound)
        mel = self.mel(sound)
        if not uncut:
            ratio = self._bundle.config.flow.frames_per_token
            length = min(mel.shape[0] // ratio, tokens.shape[0])
            tokens = tokens[:length]
            mel = mel[: ratio * length]
        return PromptFeatures(tokens, mel, self.embedding(sound))

    def _long_enough(self, samples: Tensor, least: int) -> Tensor:
        if samples.shape[1] < least:
            raise InvalidRequest("the audio is shorter than a tenth of a second")
        return samples

    def _run(self, file: Path, *inputs: np.ndarray) -> np.ndarray:
        """The first output of the model in ``file`` for ``inputs`` by position."""
        if file not in self._sessions:
            self._sessions[file] = self._open(file)
        session = self._sessions[file]
        names = [value.name for value in session.get_inputs()]
        if len(names) != len(inputs):
            raise BundleError(f"{file}: takes {len(names)} inputs, not {len(inputs)}; is it of another model?")
        try:
            return np.asarray(session.run(None, dict(zip(names, inputs, strict=True)))[0])
        except Exception as error:  # onnxruntime's errors share no public base
            raise BundleError(
                f"{file}: does not run on a prompt ({type(error).__name__}); is it of another model?"
            ) from None

    def _open(self, file: Path) -> Any:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtra("prompt models", "cosyvoice") from None
        if not file.is_file():
            raise BundleError(f"{file}: is missing; without it no voice can be added")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        on_gpu = self._cuda and file == self._bundle.speech_tokenizer
        providers = ["CUDAExecutionProvider"] if on_gpu else []
        if on_gpu and providers[0] not in onnxruntime.get_available_providers():
            raise MissingExtra("prompt models on a GPU (onnxruntime-gpu in place of onnxruntime)", "cosyvoice")
        try:
            return onnxruntime.InferenceSession(str(file), options, providers=[*providers, "CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors share no public base
            raise BundleError(f"{file}: is not a model that onnxruntime runs ({type(error).__name__})") from None
