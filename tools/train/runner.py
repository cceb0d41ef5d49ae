"""A whole training in a folder: data, bundle, and the stages in turn by the plan."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.train import speech_data, spelling
from tools.train.bundle import set_pace, speaker, write_skeleton
from tools.train.codes import CodeBook
from tools.train.config import Config, StageConfig
from tools.train.filters import FilterData, FilterStage
from tools.train.flow import FlowStage, flow_mel
from tools.train.lm import LmItem, LmStage
from tools.train.networks import (
    TrainableHift,
    TrainableSourceFilter,
    adapt_flow,
    adapt_vocoder,
    copy_matching,
    trainable_flow,
    trainable_lm,
)
from tools.train.pack import pack
from tools.train.speech_data import AudioData, PartData, UnitData, mel_of
from tools.train.trainer import STOP, Stage, resume, train
from tools.train.vocoder import VocoderData, VocoderStage
from tts_worker.engine.cosyvoice.bundle.directory import TEXT_MODEL_DIR, Bundle
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.tokens.alignment import text_weight
from tts_worker.engine.cosyvoice.tokens.respelling import FILE as RESPELLING
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.errors import ConfigError

BUNDLE = "bundle"
STATE = "state.json"
MEL = "mel.npy"
FLOW_MEL = "flow_mel.npy"
RENDER = "render"
"""Entry of the plan that is no stage: ``until_step`` is the number of lines."""
PARTS = {"lm": "llm", "flow": "flow", "vocoder": "hift"}
"""Weight files of the stages."""

_DETAILS = {
    "languages": ["en"],
    "description": "A small demonstration voice, trained from synthetic speech.",
    "license": "Apache-2.0",
    "has_prompt": False,
    "source": "training",
}

Array = np.ndarray[Any, Any]


class Training:
    """A training in a folder.

    Args:
        config: The training.
        run: The folder.
        device: Where to train.
        scale: Multiplies the batches, for a GPU.
        report: Takes a line of progress.
    """

    def __init__(
        self,
        config: Config,
        run: Path,
        device: torch.device,
        scale: int = 1,
        report: Callable[[str], None] = print,
    ) -> None:
        self.config = config
        self.run = run
        self.device = device
        self._scale = scale
        self._report = report

    @cached_property
    def units(self) -> UnitData:
        return UnitData.load(self.run / speech_data.UNITS)

    @cached_property
    def book(self) -> CodeBook:
        return CodeBook.load(self.run / speech_data.CODES)

    @cached_property
    def codes(self) -> Array:
        """Codes of all sentences."""
        return self.book.encode(self.units.halves, self.units.pitch_hz)

    @cached_property
    def audio(self) -> AudioData:
        return AudioData.load(self.run / speech_data.AUDIO)

    @cached_property
    def bundle(self) -> Bundle:
        """The bundle, without weights."""
        path = self.run / BUNDLE
        if not (path / "spk2info.pt").is_file():
            write_skeleton(path, self.config, self.book, list(self.units.spelled))
            file = path / TEXT_MODEL_DIR / RESPELLING
            spelling.write(file, self.units.texts, self.units.spelled, self.config.data.lexicon)
        return Bundle.open(path)

    @cached_property
    def mel(self) -> Array:
        """``[frames, mel]`` half precision, of all audio."""
        path = self.run / MEL
        if not path.is_file():
            np.save(path, mel_of(self.audio, self.bundle.config))
        return np.load(path)  # type: ignore[no-any-return]

    def prepare(self, workers: int = 1) -> None:
        """Make all data."""
        speech_data.prepare(self.config, self.run, workers, self._report)
        self.mel  # noqa: B018

    def pack(self, out: Path, precision: str = "int8") -> Bundle:
        """Write a bundle with the averaged weights of all checkpoints; other weights are the initial ones."""
        weights = {}
        for name, part in PARTS.items():
            stage = self.stage(name)
            resume(stage, self.run)
            weights[part] = stage.weights()
        details = {**_DETAILS, "loudness_lufs": self.config.loudness_lufs or None}
        packed = pack(self.bundle, out, weights, precision, (json.dumps(details, indent=2) + "\n").encode())
        set_pace(packed.path, self._pace)
        return Bundle.open(out)

    def follow_plan(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Train the stages in turn, continuing where the last call stopped."""
        if not self.config.plan:
            raise ConfigError("the configuration has no plan")
        end = clock() + 60 * minutes
        place = self._place()
        while clock() < end and not STOP.is_set():
            entry = self.config.plan[place["round"] % len(self.config.plan)]
            left = entry.minutes - place["minutes"]
            begin = clock()
            if entry.stage == RENDER:
                self.render(entry.until_step)
            else:
                self.train_stage(entry.stage, min(left, (end - begin) / 60), entry.until_step, clock)
            spent = (clock() - begin) / 60
            is_over = clock() < end and not STOP.is_set()
            if is_over or spent >= left or entry.stage == RENDER:
                place = {"round": place["round"] + 1, "minutes": 0.0}
            else:
                place = {"round": place["round"], "minutes": place["minutes"] + spent}
            (self.run / STATE).write_text(json.dumps(place), "utf-8")

    def train_stage(
        self,
        name: str,
        minutes: float = math.inf,
        until_step: int = 1 << 60,
        clock: Callable[[], float] = time.monotonic,
    ) -> Stage:
        stage = self.stage(name)
        train(stage, self.run, minutes=minutes, until_step=until_step, report=self._report, clock=clock)
        return stage

    def render(self, lines: int) -> None:
        """Compute the mel of the flow for the first lines that are trained on, for the vocoder to learn from."""
        stage = self.stage("flow")
        if not resume(stage, self.run):
            return
        net = Flow(self.bundle.config.chunked_flow)
        net.load_state_dict(stage.weights())
        net.requires_grad_(False).to(self.device).prepare(self.bundle.config.flow.chunk_tokens)
        mel = np.zeros_like(self.mel)
        frames = self.audio.samples // self.bundle.config.mel.hop_samples
        first = self.config.data.held_out_lines
        for i in range(first, min(first + lines, len(frames))):
            end = int(frames[: i + 1].sum())
            mel[end - int(frames[i]) : end] = flow_mel(net, self.units.of(self.codes, i), speaker().to(self.device))
        np.save(self.run / FLOW_MEL, mel)
        self._report(f"mel of the flow for {min(lines, len(frames) - first)} lines")

    def stage(self, name: str) -> Stage:
        """The stage with its initial weights."""
        makers: dict[str, Callable[[StageConfig], Stage]] = {
            "vocoder": self._vocoder,
            "flow": self._flow,
            "lm": self._lm,
        }
        if name not in makers:
            raise ConfigError(f"there is no stage {name!r}; there are: {', '.join(makers)}")
        settings = self.config.stage(name)
        torch.manual_seed(self.config.seed)
        return makers[name](replace(settings, batch=settings.batch * self._scale))

    def _vocoder(self, settings: StageConfig) -> Stage:
        dims = self.bundle.config.hift
        net = TrainableSourceFilter(dims) if dims.source_filter else TrainableHift(dims)
        if not self._copy_initial("vocoder", net):
            adapt_vocoder(net, *self._mel_statistics)
        flow_file = self.run / FLOW_MEL
        audio = self.audio
        if isinstance(net, TrainableSourceFilter):
            targets = FilterData.make(
                net,
                audio,
                PartData.load(self.run / speech_data.PARTS),
                self.mel,
                held_out=self.config.data.held_out_lines,
                segment_frames=int(settings.option("frames", 50)),
                device=self.device,
                flow_mel=np.load(flow_file) if flow_file.is_file() else None,
            )
            return FilterStage(net.to(self.device), settings, self.config.seed, targets)
        data = VocoderData.make(
            audio.samples,
            audio.audio,
            self.mel,
            audio.pitch_hz,
            held_out=self.config.data.held_out_lines,
            segment_frames=int(settings.option("frames", 25)),
            rate_hz=self.bundle.config.sample_rate_hz,
            device=self.device,
            flow_mel=np.load(flow_file) if flow_file.is_file() else None,
        )
        return VocoderStage(net.to(self.device), settings, self.config.seed, data)

    def _flow(self, settings: StageConfig) -> Stage:
        net = trainable_flow(self.bundle.config.chunked_flow)
        if not self._copy_initial("flow", net):
            adapt_flow(net, *self._mel_statistics)
        frames = self.audio.samples // self.bundle.config.mel.hop_samples
        ends = np.cumsum(frames)
        return FlowStage(
            net.to(self.device),
            settings,
            self.config.seed,
            [self.units.of(self.codes, i) for i in range(len(frames))],
            [self.mel[end - count : end] for end, count in zip(ends, frames, strict=True)],
            speaker(),
            held_out=self.config.data.held_out_lines,
        )

    def _lm(self, settings: StageConfig) -> Stage:
        dims = self.bundle.config.qwen
        net = trainable_lm(dims)
        self._copy_initial("lm", net)
        tokenizer = TextTokenizer.from_bundle(self.bundle)
        items = []
        for i, spelled in enumerate(self.units.spelled):
            ids, ends = tokenizer.encode_with_ends(spelled)
            said = np.searchsorted(ends, self.units.of(self.units.places, i), side="right")
            items.append(LmItem(np.array(ids), self.units.of(self.codes, i), np.arange(len(ids)), said))
        return LmStage(
            net.to(self.device),
            settings,
            self.config.seed,
            items,
            held_out=self.config.data.held_out_lines,
            comma_ids=frozenset(tokenizer.encode(",")),
            mix=self.bundle.config.mix_ratio,
        )

    @property
    def _pace(self) -> float:
        """Speech tokens per unit of weight of the text, as the engine weighs it."""
        spelled = map(TextTokenizer.from_bundle(self.bundle).spell, self.units.texts)
        return float(self.units.tokens.sum()) / sum(map(text_weight, spelled))

    @cached_property
    def _mel_statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of each mel bin."""
        mel = torch.from_numpy(self.mel[:200_000].astype(np.float32))
        return mel.mean(0), mel.std(0)

    def _copy_initial(self, stage: str, net: torch.nn.Module) -> bool:
        """Copy what fits of the initial bundle; False without one."""
        if not self.config.initial:
            return False
        weights = Bundle.open(self.config.initial).load_weights(PARTS[stage])
        count = copy_matching(net, weights)
        self._report(f"{stage}: {count} of {len(net.state_dict())} tensors of {self.config.initial}")
        return True

    def _place(self) -> dict[str, Any]:
        path = self.run / STATE
        if not path.is_file():
            return {"round": 0, "minutes": 0.0}
        place: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return place
