"""Fine-tunes a CosyVoice bundle on recordings with transcripts, as a new speaker that needs no prompt.

The same stages as in a training from scratch: supervised tuning of language model and flow, or low-rank adapters of
the language model. The vocoder stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tools.train.config import StageConfig
from tools.train.flow import FlowStage
from tools.train.lm import LmItem, LmStage
from tools.train.lora import add_adapters, merge_adapters
from tools.train.manifest import manifest_rows
from tools.train.networks import trainable_flow, trainable_lm
from tools.train.pack import pack
from tools.train.trainer import Stage, train
from tts_worker.audio.decode import read_recording
from tts_worker.engine.cosyvoice.bundle.config import V3
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.networks.qwen2 import SpeechLM
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend
from tts_worker.engine.cosyvoice.voices.enroll import plain_transcript
from tts_worker.engine.cosyvoice.voices.speaker import instruct_ids
from tts_worker.errors import ConfigError, TTSWorkerError
from tts_worker.voices.files import VOICES_DIR, Voice, save_voice

METHODS = ("full", "lora", "none")
_HELD_OUT_SHARE = 20  # every n-th row, at least one
_GUIDANCE_DROP = 0.2  # as the models were trained


@dataclass(frozen=True)
class FineTuning:
    """What is trained.

    Attributes:
        voice: Name of the new speaker.
        lm: Language model: ``full``, ``lora`` or ``none``.
        flow: Flow: ``full`` or ``none``.
        lm_steps: Steps of the language model.
        flow_steps: Steps of the flow.
        rank: Of the adapters.
        lr: Learning rate; adapters take ten times as much.
        positions: Batch of the language model; that of the flow has as many frames.
        seed: Seed of everything random.
    """

    voice: str
    lm: str = "lora"
    flow: str = "full"
    lm_steps: int = 1000
    flow_steps: int = 2000
    rank: int = 8
    lr: float = 1e-5
    positions: int = 2000
    seed: int = 1

    def __post_init__(self) -> None:
        if self.lm not in METHODS or self.flow not in ("full", "none"):
            raise ConfigError("the language model is trained full, lora or none, the flow full or none")


@dataclass(frozen=True)
class Recordings:
    """Features of a manifest.

    Attributes:
        items: Text and speech tokens; the words are not known.
        mels: Mel of each recording.
        embedding: ``[1, spk]`` mean speaker embedding.
    """

    items: tuple[LmItem, ...]
    mels: tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], ...]
    embedding: Tensor

    @property
    def held_out(self) -> int:
        return max(1, len(self.items) // _HELD_OUT_SHARE)


def read_manifest(bundle: Bundle, manifest: Path) -> Recordings:
    """Read all recordings.

    Raises:
        ConfigError: The manifest is malformed, or a recording is unusable; names the line.
    """
    frontend = PromptFrontend(bundle)
    tokenizer = TextTokenizer.from_bundle(bundle)
    prefix = instruct_ids(tokenizer, bundle.config, "") if bundle.config.family == V3 else []
    items, mels, embeddings = [], [], []
    for row in manifest_rows(manifest):
        try:
            text = plain_transcript(row.text)
            features = frontend.prompt(read_recording(row.audio))
        except TTSWorkerError as error:
            raise ConfigError(f"{row.where}: {error.message}") from None
        ids = np.array([*prefix, *tokenizer.encode(text)])
        codes = features.tokens.numpy().astype(np.int64)
        items.append(LmItem(ids, codes, np.zeros(len(ids), np.int64), np.full(len(codes), -1)))
        mels.append(features.mel.numpy())
        embeddings.append(F.normalize(features.embedding, dim=0))
    if len(items) < 2:
        raise ConfigError(f"{manifest}: needs two recordings at least, one of which is held out")
    return Recordings(tuple(items), tuple(mels), torch.stack(embeddings).mean(0, keepdim=True))


def fine_tune(
    bundle: Bundle,
    manifest: Path,
    out: Path,
    run: Path,
    plan: FineTuning,
    *,
    device: str = "cpu",
    precision: str = "fp32",
    report: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
) -> Bundle:
    """Write a bundle to ``out`` whose speaker ``plan.voice`` is that of the recordings. Resumes from ``run``."""
    run.mkdir(parents=True, exist_ok=True)
    recordings = read_manifest(bundle, manifest)
    weights: dict[str, dict[str, Tensor]] = {}
    torch.manual_seed(plan.seed)

    def follow(stage: Stage, steps: int) -> None:
        train(stage, run, until_step=steps, report=report, clock=clock)

    if plan.lm != "none":
        lm = _lm_stage(bundle, recordings, plan, torch.device(device))
        follow(lm, plan.lm_steps)
        with lm.averaged():
            if plan.lm == "lora":
                merge_adapters(lm.lm)
            weights["llm"] = _on_cpu(lm.lm)
    if plan.flow != "none":
        flow = _flow_stage(bundle, recordings, plan, torch.device(device))
        follow(flow, plan.flow_steps)
        weights["flow"] = flow.weights()
    tuned = pack(bundle, out, weights, precision)
    save_voice(out / VOICES_DIR, plan.voice, _voice(bundle, recordings), replace=True)
    return tuned


def _lm_stage(bundle: Bundle, recordings: Recordings, plan: FineTuning, device: torch.device) -> LmStage:
    net = trainable_lm(bundle.config.qwen)
    net.load_state_dict(bundle.load_weights("llm"))
    net.tie()
    net = net.to(device)
    is_lora = plan.lm == "lora"
    if is_lora:
        add_adapters(net, plan.rank)
    settings = StageConfig(
        lr=plan.lr * 10 if is_lora else plan.lr, batch=plan.positions, options={"interleaved": 0.5, "joined": 0.0}
    )
    return LmStage(
        net,
        settings,
        plan.seed,
        recordings.items,
        held_out=recordings.held_out,
        comma_ids=frozenset(),
        mix=bundle.config.mix_ratio,
    )


def _flow_stage(bundle: Bundle, recordings: Recordings, plan: FineTuning, device: torch.device) -> FlowStage:
    net = trainable_flow(bundle.config.chunked_flow)
    net.load_state_dict(bundle.load_weights("flow"))
    drop = _GUIDANCE_DROP if bundle.config.flow.guidance else 0.0
    settings = StageConfig(lr=plan.lr, batch=plan.positions, options={"joint": 1, "drop": drop})
    codes = [item.codes for item in recordings.items]
    held_out = recordings.held_out
    return FlowStage(
        net.to(device), settings, plan.seed, codes, recordings.mels, recordings.embedding, held_out=held_out
    )


def _voice(bundle: Bundle, recordings: Recordings) -> Voice:
    """A speaker without a prompt."""
    none = np.zeros(0, np.int32)
    mel = np.zeros((0, bundle.config.mel.bins), np.float32)
    return Voice(bundle.config.family, "", none, none, mel, recordings.embedding[0].numpy().astype(np.float32))


def _on_cpu(net: SpeechLM) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in net.state_dict().items()}
