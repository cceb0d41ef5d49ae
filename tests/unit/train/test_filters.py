"""The vocoder that filters its excitation learns the gains of the teacher's parts, and resumes exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.train.test_stages import assert_equal
from tests.unit.train.tiny import filter_config, write_data
from tools.train import teacher
from tools.train.filters import FilterStage
from tools.train.pack import pack
from tools.train.runner import Training
from tools.train.trainer import train
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.hift import HashedNoise
from tts_worker.engine.cosyvoice.networks.source_filter import SourceFilter


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    write_data(path, filter_config())
    training(path).prepare()
    return path


def training(run: Path) -> Training:
    return Training(filter_config(), run, torch.device("cpu"), report=lambda line: None)


def stage_of(run: Path) -> FilterStage:
    stage = training(run).stage("vocoder")
    assert isinstance(stage, FilterStage)
    return stage


def test_configuration_chooses_the_vocoder(run: Path) -> None:
    assert training(run).bundle.config.hift.source_filter
    assert isinstance(stage_of(run).filter, SourceFilter)


def test_filter_stage_learns(run: Path) -> None:
    stage = stage_of(run)
    before = stage.held_out()
    for _ in range(40):
        stage.update()
    with stage.averaged():
        after = stage.held_out()
    assert after["noise"] < 0.7 * before["noise"]
    assert after["harmonics"] < 0.7 * before["harmonics"]


def test_resumed_filter_stage_equals_one_without_a_break(run: Path, tmp_path: Path) -> None:
    whole = stage_of(run)
    train(whole, tmp_path, until_step=4, report=lambda line: None)
    (tmp_path / "vocoder.pt").unlink()
    for step in (2, 4):
        broken = stage_of(run)
        train(broken, tmp_path, until_step=step, report=lambda line: None)
    assert_equal(whole.state(), broken.state())


def test_segments_stay_within_the_audio(run: Path) -> None:
    stage = stage_of(run)
    assert int(stage.data.starts.max()) + stage.frames <= len(stage.data.pitch_hz)
    assert len(stage.data.noise) == 4 * len(stage.data.pitch_hz) == len(stage.data.harmonics)


def test_targets_are_the_gains_that_make_the_audio(run: Path) -> None:
    """Filtered with them, the excitation has the level of the teacher's parts."""
    stage = stage_of(run)
    net, data = stage.filter, stage.data
    pitch, columns = data.pitch_hz[None, :100], slice(0, 400)
    generator = torch.Generator().manual_seed(1)
    phase = torch.zeros(1, net.dims.nb_harmonics + 1, dtype=torch.float64)
    source = net.m_source(pitch, phase, torch.randn(1, 100 * 480, 1, generator=generator))
    spectrum = net._analyze(source, None)[:, :, :-1]
    told = data.harmonics.shape[1]
    voiced = (pitch > 0).repeat_interleave(4, 1).float()
    noise = 0.5 * data.noise[columns].float().mean().log().repeat(241, 400)[None]
    silent = torch.full_like(noise, -20.0)
    harmonic = silent.clone()
    harmonic[:, :told] = data.harmonics[columns].T.float()
    with torch.no_grad():
        hiss = net._synthesize(torch.cat([silent, noise], 1), spectrum, None)
        voice = net._synthesize(torch.cat([harmonic, silent], 1), spectrum, None)
    assert float(hiss.std()) == pytest.approx(0.01, rel=0.1)
    harmonics = net.dims.nb_harmonics + 1
    level = float((voice.square().mean() / voiced.mean()).sqrt())
    assert level == pytest.approx(0.03 * (harmonics / 2) ** 0.5, rel=0.1)


def test_packed_source_filter_runs_in_the_engine(run: Path, tmp_path: Path) -> None:
    stage = stage_of(run)
    bundle = pack(Bundle.open(run / "bundle"), tmp_path / "out", {**weights(run), "hift": stage.weights()}, "fp32")
    networks = Networks.load(bundle)
    mel = torch.randn(1, 80, 12)
    audio, source = networks.hift(mel, HashedNoise(torch.zeros(1, dtype=torch.long), normal=True))
    assert audio.shape == (1, 12 * 480)
    assert source.shape == (1, 2, 12 * 480)
    with torch.no_grad():
        assert (stage.filter.decode(mel, source) - audio).abs().max() < 1e-4


def weights(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {part: training(run).stage(name).weights() for name, part in (("lm", "llm"), ("flow", "flow"))}


def test_levels_are_read_between_frames_and_at_every_second_bin() -> None:
    levels = np.arange(601.0)[:, None] + np.array([0.0, 10.0, 20.0])
    found = teacher.levels_at(levels.astype(np.float32), np.array([0.0, 0.5, 2.0, 9.0])) + np.log(300)
    assert found.shape == (4, teacher.PART_BINS)
    assert found[:, 0] == pytest.approx([0, 5, 20, 20], abs=1e-3)
    assert found[0, :3] == pytest.approx([0, 2, 4], abs=1e-3)
