"""The stages of a training: they learn, resume exactly, and compute what the engine computes."""

from __future__ import annotations

import json
import wave
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from tests.unit.train.tiny import tiny_config, write_data
from tools.train.bundle import set_pace
from tools.train.curves import draw, read_curves
from tools.train.evaluate import Evaluation
from tools.train.lm import LmBatch, LmItem, embed, interleaved_sequence, plain_sequence
from tools.train.networks import language_model_pass
from tools.train.pack import pack
from tools.train.runner import PARTS, Training
from tools.train.trainer import Stage, curve_path, train
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool
from tts_worker.engine.cosyvoice.tokens.alignment import text_weight
from tts_worker.voices.files import VOICES_DIR, stored_voices

STAGES = ("lm", "flow", "vocoder")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and bundle without weights, to be copied."""
    run = tmp_path_factory.mktemp("run")
    write_data(run, tiny_config())
    training(run).prepare()
    return run


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Path:
    for file in data.iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def training(run: Path) -> Training:
    return Training(tiny_config(), run, CPU, report=lambda line: None)


@pytest.mark.parametrize("name", STAGES)
def test_resumed_stage_equals_one_without_a_break(run: Path, tmp_path: Path, name: str) -> None:
    whole = training(run).stage(name)
    train(whole, tmp_path, until_step=4, report=lambda line: None)
    (tmp_path / f"{name}.pt").unlink()
    for step in (2, 4):
        broken = training(run).stage(name)
        train(broken, tmp_path, until_step=step, report=lambda line: None)
    assert_equal(whole.state(), broken.state())


def assert_equal(a: object, b: object) -> None:
    if isinstance(a, dict):
        assert isinstance(b, dict)
        assert a.keys() == b.keys()
        for key, value in a.items():
            assert_equal(value, b[key])
    elif isinstance(a, (list, tuple)):
        assert isinstance(b, (list, tuple))
        for ours, theirs in zip(a, b, strict=True):
            assert_equal(ours, theirs)
    elif isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        assert torch.equal(a, b)
    else:
        assert a == b


@pytest.mark.parametrize(("name", "score", "steps"), [("lm", "entropy", 25), ("flow", "distance", 25)])
def test_stage_learns(run: Path, name: str, score: str, steps: int) -> None:
    stage = training(run).stage(name)
    before = stage.held_out()[score]
    train(stage, run, until_step=steps, report=lambda line: None)
    entries = [json.loads(line) for line in curve_path(run, name).read_text("utf-8").splitlines()]
    assert entries[-1][f"held_out_{score}"] < 0.8 * before


def test_vocoder_learns_with_and_without_discriminator(run: Path) -> None:
    stage = training(run).stage("vocoder")
    before = stage.held_out()["log"]
    for step in range(12):
        metrics = stage.update()
        assert ("adversarial" in metrics) == (step >= 2)
    with stage.averaged():
        assert stage.held_out()["log"] < 0.96 * before


@pytest.fixture(scope="module")
def packed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Stage], Bundle]:
    stages = {name: training(data).stage(name) for name in STAGES}
    weights = {PARTS[name]: stage.weights() for name, stage in stages.items()}
    return stages, pack(Bundle.open(data / "bundle"), tmp_path_factory.mktemp("packed"), weights, "fp32")


@torch.no_grad()
def test_language_model_agrees_with_the_engine(packed: tuple[dict[str, Stage], Bundle], data: Path) -> None:
    stages, bundle = packed
    net = stages["lm"].net
    item = LmItem(np.arange(5), np.arange(9), np.zeros(5, np.int64), np.zeros(9, np.int64))
    batch = LmBatch.of([plain_sequence(item, item.codes, bundle.config.lm)])
    hidden, _ = language_model_pass(net, embed(net, batch))  # type: ignore[arg-type]
    expected = net.llm_decoder(hidden[:, -1]).log_softmax(-1)  # type: ignore[operator]

    networks = Networks.load(bundle)
    lm, dims = networks.lm, bundle.config.lm
    one = torch.ones(1, dtype=torch.long)
    special = lm.embed_special(dims.sos_row), lm.embed_special(dims.task_row)
    x = torch.cat([special[0], lm.embed_text(torch.arange(5)), special[1], lm.embed_speech(torch.arange(9))])[None]
    pool = SlotPool(dims.layers, 1, dims.kv_heads, 32, dims.head_dim, dtype=torch.float32, device="cpu")
    assert (lm(x, one * 16, one * 0, pool, 16) - expected).abs().max() < 1e-4


@torch.no_grad()
def test_packed_bundle_knows_its_pace(run: Path, tmp_path: Path) -> None:
    """For the word times of a voice without a prompt; a bundle that is packed again says it once."""
    (training(run).bundle.text_model_dir / "respelling.tsv").write_text("bat\tbˈæt\n", "utf-8")
    pace = training(run).pack(tmp_path / "out").config.pace
    units = training(run).units
    spelled = [text.lower().replace("bat", "bˈæt") for text in units.texts]
    assert pace == pytest.approx(units.tokens.sum() / sum(map(text_weight, spelled)), abs=1e-3)
    set_pace(tmp_path / "out", 2.5)
    assert Bundle.open(tmp_path / "out").config.pace == 2.5
    assert (tmp_path / "out" / "cosyvoice2.yaml").read_text("utf-8").count("pace:") == 1


def test_flow_and_vocoder_agree_with_the_engine(packed: tuple[dict[str, Stage], Bundle]) -> None:
    stages, bundle = packed
    networks = Networks.load(bundle)
    tokens = torch.arange(30)[None] % bundle.config.flow.vocab
    one = torch.ones(1, dtype=torch.long)
    mu = []
    for flow in (stages["flow"].net, networks.flow):
        flow.encoder.prepare(27)  # type: ignore[union-attr,operator]
        front = flow.no_past().front  # type: ignore[operator,union-attr]
        mu.append(flow.mu(tokens, one * 30, one * 0, one * 27, 27, True, front))  # type: ignore[operator]
    assert (mu[0] - mu[1]).abs().max() < 1e-4

    mel = torch.randn(1, 80, 12)
    source = torch.randn(1, 1, 12 * 480) * 0.1
    ours = stages["vocoder"].net.decode(mel, source)  # type: ignore[operator]
    assert (ours - networks.hift.decode(mel, source)).abs().max() < 1e-4


@pytest.mark.parametrize(("precision", "most"), [("fp16", 1e-3), ("int8", 0.02)])
def test_packed_weights_are_close(
    packed: tuple[dict[str, Stage], Bundle], tmp_path: Path, precision: str, most: float
) -> None:
    _, bundle = packed
    small = pack(bundle, tmp_path, {}, precision)
    assert stored_voices(small.path / VOICES_DIR) == ["nano"]
    for part in PARTS.values():
        exact = bundle.load_weights(part)
        for name, tensor in small.load_weights(part).items():
            assert (tensor - exact[name]).abs().max() <= most * exact[name].abs().max() + 1e-6, name
    Networks.load(small).check()


def test_plan_continues_where_it_stopped(run: Path) -> None:
    ticks = iter(range(10_000))
    training(run).follow_plan(0.2, clock=lambda: float(next(ticks)))
    first = json.loads((run / "state.json").read_text())
    training(run).follow_plan(0.5, clock=lambda: float(next(ticks)))
    second = json.loads((run / "state.json").read_text())
    assert second["round"] > first["round"]
    flow_mel = np.load(run / "flow_mel.npy")
    assert 0 < (flow_mel[:, 0] != 0).mean() < 0.5  # of three lines
    assert training(run).stage("vocoder").data.flow_mel is not None  # type: ignore[attr-defined]


def test_curves_of_all_metrics_are_drawn(tmp_path: Path) -> None:
    entries = [{"step": 50, "cpu_s": 1, "loss": 2.0}, {"step": 100, "cpu_s": 2, "loss": 1.0, "held_out_loss": 1.5}]
    (tmp_path / "lm.jsonl").write_text("\n".join(map(json.dumps, entries)), "utf-8")
    image = ElementTree.fromstring(draw(read_curves(tmp_path / "lm.jsonl"), "lm < flow"))
    space = "{http://www.w3.org/2000/svg}"
    assert [text.text for text in image.iter(f"{space}text")][1:4] == ["loss", "2", "1"]
    assert len(list(image.iter(f"{space}circle"))) == 1


def test_metric_that_falls_far_is_drawn_on_a_logarithmic_scale() -> None:
    image = ElementTree.fromstring(draw({"noise": [(0, 100.0), (1, 1.0)], "held_out_noise": [(1, 10.0)]}, "vocoder"))
    space = "{http://www.w3.org/2000/svg}"
    (circle,) = image.iter(f"{space}circle")
    assert float(circle.get("cy", "")) == 75  # half of the height
    assert "noise (log)" in [text.text for text in image.iter(f"{space}text")]


class Listener:
    """Hears what it is told."""

    def transcribe(self, pcm: bytes) -> str:
        return "at to"

    def wer(self, references: Sequence[str], hypotheses: Sequence[str]) -> float:
        assert list(references) == ["At to."]
        assert list(hypotheses) == ["at to"]
        return 0.25

    def mos(self, pcm: bytes) -> float:
        assert pcm
        return 1.0


def test_evaluation_times_the_streaming_engine(packed: tuple[dict[str, Stage], Bundle], tmp_path: Path) -> None:
    _, bundle = packed
    score = Evaluation(bundle, ["At to."], tmp_path / "teacher.onnx", Listener(), tmp_path).score("text")
    assert (score.wer, score.mos) == (0.25, 1.0)
    assert score.real_time_factor is not None
    assert score.first_audio_ms is not None
    with wave.open(str(tmp_path / "text-00.wav")) as file:
        heard_s = file.getnframes() / file.getframerate()
    assert 0 < score.first_audio_ms <= 1000 * score.real_time_factor * heard_s + 1


def test_interleaved_sequence_predicts_a_fill_after_each_group() -> None:
    item = LmItem(np.arange(100, 107), np.arange(40), np.zeros(7, np.int64), np.zeros(40, np.int64))
    dims = type("Dims", (), {"fill_id": 90, "eos_id": 91})()
    kinds, ids, targets, _, _ = interleaved_sequence(item, item.codes, dims, (5, 15))  # type: ignore[arg-type]
    spoken = [int(target) for target in targets if target >= 0]
    assert spoken == [*range(15), 90, *range(15, 40), 91]
    assert len(kinds) == len(ids) == len(targets)
    at = int(np.flatnonzero(targets == 0)[0])
    assert ids[at] == 104  # the first code follows the fifth text id
