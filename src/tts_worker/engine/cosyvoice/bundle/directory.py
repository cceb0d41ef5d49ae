"""An official CosyVoice model directory: its files, its configuration and whether it can be served.

    bundle = Bundle.open("CosyVoice2-0.5B")          # reads the YAML and config.json, no weights
    bundle.config                                     # CosyVoiceConfig: every dimension, rate and id
    bundle.load_weights("llm" | "flow" | "hift")      # dict[str, Tensor], current spelling, checked, float32 by default
    bundle.validate()                                 # Report: everything missing, mis-shaped or damaged

This module owns file names and their fallbacks (``.safetensors`` before ``.pt``, ``llm.rl``). It builds no network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.bundle.config import V1, V2, V3, WHISPER, YAML_NAMES, CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.tensor_files import read_tensors
from tts_worker.engine.cosyvoice.bundle.weights import (
    PARTS,
    Shape,
    check_tensors,
    check_values,
    complete,
    expected_shapes,
    normalize_keys,
)
from tts_worker.errors import BundleError
from tts_worker.models.bundles.onnx_file import check_onnx
from tts_worker.models.bundles.report import Problem, Report

TEXT_MODEL_DIR = "CosyVoice-BlankEN"
WHISPER_VOCABULARY = "multilingual.tiktoken"
CHARACTER_VOCABULARY = "multilingual_zh_ja_yue_char_del.tiktoken"
_GENERATIONS = {V1: "v1", V2: "v2", V3: "v3"}
RANDOM_WEIGHTS_MARKER = "RANDOM_WEIGHTS.txt"
MAX_TEXT_BYTES = 1 << 20


@dataclass(frozen=True)
class Bundle:
    """An opened model directory.

    Attributes:
        path: The directory.
        config: Every dimension, rate and id of the networks.
        rl: Use ``llm.rl.pt``, CosyVoice3's language model after reinforcement learning.
    """

    path: Path
    config: CosyVoiceConfig
    rl: bool = False

    @classmethod
    def open(cls, path: str | Path, *, rl: bool = False) -> Bundle:
        """Read the configuration of a model directory; no weights are loaded.

        Raises:
            BundleError: The directory or its YAML is missing or inconsistent; names the file and key.
        """
        path = Path(path)
        if not path.is_dir():
            raise BundleError(f"{path}: no such model directory; get one with: tts-worker voicepack pull")
        # The newest: early directories of CosyVoice2 hold a cosyvoice.yaml, too.
        name = next((name for name in reversed(YAML_NAMES) if (path / name).is_file()), None)
        if name is None:
            raise BundleError(f"{path}: holds none of {', '.join(YAML_NAMES)}; not a CosyVoice model directory")
        family = YAML_NAMES[name]
        qwen = None if family == V1 else _read_json(path / TEXT_MODEL_DIR / "config.json")
        return cls(path, CosyVoiceConfig.from_files(_read_text(path / name), qwen, str(path / name), family), rl)

    @property
    def has_random_weights(self) -> bool:
        """Whether the weights are random, so that the output is noise."""
        return (self.path / RANDOM_WEIGHTS_MARKER).is_file()

    @property
    def text_model_dir(self) -> Path:
        """Directory of ``vocab.json``, ``merges.txt``, ``tokenizer_config.json`` and ``config.json``."""
        return self.path / TEXT_MODEL_DIR

    @property
    def campplus(self) -> Path:
        return self.path / "campplus.onnx"

    @property
    def speech_tokenizer(self) -> Path:
        return self.path / f"speech_tokenizer_{_GENERATIONS[self.config.family]}.onnx"

    @property
    def whisper_vocabulary(self) -> Path:
        """Text tokens of CosyVoice-300M, which the official directories lack."""
        is_whisper = self.config.tokenizer_version == WHISPER
        return self.path / (WHISPER_VOCABULARY if is_whisper else CHARACTER_VOCABULARY)

    @property
    def speaker_info(self) -> Path:
        """Optional file with the speakers the model was fine-tuned on."""
        return self.path / "spk2info.pt"

    def weight_file(self, part: str) -> Path:
        """Weight file of ``part`` (``llm``, ``flow`` or ``hift``); prefers safetensors."""
        stem = "llm.rl" if part == "llm" and self.rl else part
        converted = self.path / f"{stem}.safetensors"
        return converted if converted.is_file() else self.path / f"{stem}.pt"

    def load_weights(self, part: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Load and check the weights of ``part``.

        Returns:
            Tensors with exactly the keys of ``expected_shapes``, on the CPU, memory-mapped where possible.

        Raises:
            BundleError: A tensor is missing, has the wrong shape, is not finite or has implausibly large values.
        """
        expected = expected_shapes(self.config, part)
        tensors, problems = self._read(part, expected)
        problems += check_values(tensors, self.weight_file(part).name)
        Report(self.path, tuple(problems)).raise_if_bad()
        return complete(expected, tensors, dtype)

    def validate(self, *, values: bool = True) -> Report:
        """Check every file that serving needs.

        Args:
            values: Also read all weights to find NaN and implausible values.
        """
        return Report(self.path, tuple(self._problems(values)))

    def _problems(self, values: bool) -> Iterator[Problem]:
        for part in PARTS:
            try:
                tensors, problems = self._read(part, expected_shapes(self.config, part))
            except BundleError as error:
                yield Problem(self.weight_file(part).name, error.message)
                continue
            yield from problems
            if values:
                yield from check_values(tensors, self.weight_file(part).name)
        yield from self.missing_text_files()
        for file in (self.campplus, self.speech_tokenizer):
            if problem := check_onnx(file):
                # Stored voices do not need these models.
                yield Problem(file.name, f"{problem}: no voice can be added", fatal=file.exists())

    def missing_text_files(self) -> Iterator[Problem]:
        """Yield a problem for each file of the vocabulary that is missing."""
        if self.config.family == V1:
            if not self.whisper_vocabulary.is_file():
                source = vocabulary_source(self.whisper_vocabulary)
                yield Problem(self.whisper_vocabulary.name, f"is missing: no text can be read; get it {source}")
            return
        for name in ("vocab.json", "merges.txt"):
            if not (self.text_model_dir / name).is_file():
                yield Problem(f"{TEXT_MODEL_DIR}/{name}", "is missing: no text can be read")

    def _read(self, part: str, expected: Mapping[str, Shape]) -> tuple[dict[str, Tensor], list[Problem]]:
        file = self.weight_file(part)
        other = replace(self, rl=not self.rl).weight_file(part)
        if other.is_file() and not file.is_file():
            raise BundleError(f"{file}: is missing, but there is {other.name}: set rl to {str(not self.rl).lower()}")
        tensors = normalize_keys(part, read_tensors(file), str(file))
        return tensors, check_tensors(expected, tensors, file.name)


def _read_json(file: Path) -> object:
    try:
        content: object = json.loads(_read_text(file))
    except (ValueError, RecursionError):
        raise BundleError(f"{file}: is not valid JSON") from None
    return content


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_TEXT_BYTES + 1)
        text = raw.decode("utf-8")
    except FileNotFoundError:
        raise BundleError(f"{file}: is missing") from None
    except (OSError, UnicodeDecodeError):
        raise BundleError(f"{file}: is not readable UTF-8 text") from None
    if len(raw) > MAX_TEXT_BYTES:
        raise BundleError(f"{file}: is larger than {MAX_TEXT_BYTES} bytes, so it is not a configuration")
    return text


def vocabulary_source(file: Path) -> str:
    """Say where to get the vocabulary with the name of ``file``."""
    if file.name == WHISPER_VOCABULARY:
        return (
            "with tts-worker voicepack pull cosyvoice-300m, or from the Python package openai-whisper (whisper/assets)"
        )
    return "from the repository FunAudioLLM/CosyVoice (cosyvoice/tokenizer/assets)"
