"""Fine-tuning from a manifest to a bundle that the engine speaks with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from tools.random_bundle.writer import write_random_bundle
from tools.train.finetune import FineTuning, fine_tune
from tools.train.lora import add_adapters, merge_adapters
from tools.train.networks import trainable_lm
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.errors import ConfigError
from tts_worker.features.offline.engine import load_offline_engine, speak
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import Audio, SynthesisParams
from tts_worker.voices.files import VOICES_DIR, load_voice

PLAN = FineTuning("anna", lm_steps=3, flow_steps=3, rank=2, lr=1e-3, positions=300)


def write_manifest(folder: Path, rows: int = 3) -> Path:
    rng = np.random.default_rng(0)
    lines = []
    for i in range(rows):
        wave = 0.2 * np.sin(np.cumsum(rng.uniform(0.02, 0.06, 20_000))) + 0.01 * rng.standard_normal(20_000)
        soundfile.write(folder / f"{i}.wav", wave.astype(np.float32), 24_000)
        lines.append(json.dumps({"audio": f"{i}.wav", "text": f"Hello, number {['one', 'two', 'three'][i]}."}))
    manifest = folder / "manifest.jsonl"
    manifest.write_text("\n".join(lines), "utf-8")
    return manifest


@pytest.mark.parametrize(("family", "lm"), [("cosyvoice2", "lora"), ("cosyvoice3", "full")])
def test_manifest_becomes_a_bundle_that_speaks(tmp_path: Path, family: str, lm: str) -> None:
    pytest.importorskip("onnx", reason="writes prompt models")
    bundle = write_random_bundle(tmp_path / "random", family)
    manifest = write_manifest(tmp_path)
    plan = FineTuning(**{**PLAN.__dict__, "lm": lm})

    tuned = fine_tune(bundle, manifest, tmp_path / "tuned", tmp_path / "run", plan, report=lambda line: None)

    for part, changed in (("llm", True), ("flow", True), ("hift", False)):
        before, after = bundle.load_weights(part), tuned.load_weights(part)
        assert any(not torch.equal(before[name], after[name]) for name in before) == changed, part
    voice = load_voice(tuned.path / VOICES_DIR, "anna")
    engine = load_offline_engine(tuned.path, {"anna": voice}, device="cpu", threads=1)
    pipeline = TextPipeline(TextOptions())
    segments = [*pipeline.feed("Hello."), *pipeline.end()]
    assert any(isinstance(event, Audio) for event in speak(engine, SynthesisParams("anna"), segments))


def test_adapters_change_nothing_before_training(tmp_path: Path) -> None:
    bundle = Bundle.open(write_random_bundle(tmp_path / "random", "cosyvoice2", prompt_models=False).path)
    net = trainable_lm(bundle.config.lm)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    add_adapters(net, 4)
    assert 0 < sum(parameter.requires_grad for parameter in net.parameters()) < len(before)
    merge_adapters(net)
    after = net.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: must be"),
        ('{"audio": "0.wav"}', "line 2: must be"),
        ('{"audio": "none.wav", "text": "Hello."}', "line 2: .*no such audio file"),
    ],
)
def test_manifest_errors_name_the_line(tmp_path: Path, line: str, message: str) -> None:
    pytest.importorskip("onnx", reason="writes prompt models")
    bundle = write_random_bundle(tmp_path / "random", "cosyvoice2")
    manifest = write_manifest(tmp_path, rows=1)
    manifest.write_text(manifest.read_text("utf-8") + "\n" + line, "utf-8")
    with pytest.raises(ConfigError, match=message):
        fine_tune(bundle, manifest, tmp_path / "tuned", tmp_path / "run", PLAN)
