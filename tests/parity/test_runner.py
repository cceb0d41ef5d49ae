"""The parity runner: the networks pass, and every defect of a golden folder fails."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.cosyvoice.bundles import FAMILIES, GOLDEN, tiny
from tests.unit.cosyvoice.networks import tiny_bundle
from torch import Tensor

from tools.parity import command
from tools.parity.compare import CheckList, Golden
from tools.parity.flow_stages import check_estimator, check_inference
from tools.parity.report import Check, ParityReport, Status
from tools.parity.runner import run_parity
from tools.parity.v1_stages import check_v1_estimator, check_v1_stream
from tts_worker.cli import run_command
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.bundle.tensor_files import read_safetensors, write_safetensors
from tts_worker.engine.cosyvoice.v1.flow import V1Flow
from tts_worker.errors import BundleError, ConfigError, InvalidRequest

pytestmark = pytest.mark.timeout(400)  # a whole run of every stage is half a minute of work where two share a core

# One number that the reference computed, for each file.
RESULTS = {
    "bistream_mid_stop_error": "emitted",
    "debug_layers": "llm.layer0.self_attn",
    "e2e_text2wav": "zero_shot_tokens",
    "flow_encoder": "mu_final0_stream1",
    "flow_estimator": "out_60_stream1",
    "flow_inference": "mel_28_stream1_final0",
    "hift": "decode",
    "llm_cross_lingual": "logp",
    "llm_free_run": "seed11",
    "sampling": "cand_idx_0",
}


load_again = Networks.load


@pytest.fixture(autouse=True, scope="module")
def weights_are_loaded_once() -> Iterator[None]:
    """The runner changes no weights, except to halve them."""

    @lru_cache
    def load_once(path: Path, **options: Any) -> Networks:
        return load_again(Bundle.open(path), **options)

    def load(bundle: Bundle, **options: Any) -> Networks:
        kept = options["lm_dtype"] is torch.float32
        return load_once(bundle.path, **options) if kept else load_again(bundle, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Networks, "load", load)
        yield


@lru_cache
def report_of(family: str) -> ParityReport:
    return run_parity(tiny(family), GOLDEN[family])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A golden folder of CosyVoice2 with one small file."""
    path = tmp_path / "golden"
    path.mkdir()
    shutil.copy(GOLDEN["cosyvoice2"] / "flow_estimator.safetensors", path)
    return path


def rewrite(file: Path, **changed: Tensor | None) -> None:
    """Replace, add or (None) drop tensors of a golden file."""
    tensors, metadata = read_safetensors(file)
    kept = {key: value.clone() for key, value in (tensors | changed).items() if value is not None}
    file.unlink()
    write_safetensors(file, kept, metadata)


def failures(path: Path, family: str = "cosyvoice2") -> list[Check]:
    report = run_parity(tiny(family), path)
    failed = [check for check in report.checks if check.status is Status.FAIL]
    assert report.passed == (not failed)
    assert report.exit_code == (1 if failed else 0)
    return failed


@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_matches_the_reference(family: str) -> None:
    report = report_of(family)

    assert [
        f"{check.file}/{check.name} {check.error} {check.note}"
        for check in report.checks
        if check.status is Status.FAIL
    ] == []
    passed = {check.file for check in report.checks if check.status is Status.PASS}
    assert {file.stem for file in GOLDEN[family].glob("*.safetensors")} <= passed
    assert {"text/tokenizer", "text/normalize", "silent_tokens", "spk2info_with_zero_shot.pt"} <= passed
    assert all(check.note for check in report.checks if check.status is Status.INFO)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_golden_tensor_is_compared(family: str) -> None:
    """Every result has its own line; the other tensors are inputs of a result."""
    named = {(check.file, check.name) for check in report_of(family).checks}
    for file in GOLDEN[family].glob("flow_*.safetensors"):
        results = [key for key in read_safetensors(file)[0] if key.startswith(("out_", "mu_f", "mel_", "h_final"))]
        assert results
        assert {(file.stem, key) for key in results} <= named


def test_every_stage_of_cosyvoice_300m_matches() -> None:
    family = "cosyvoice1"
    checks = report_of(family).checks

    assert [f"{c.file}/{c.name} {c.error} {c.note}" for c in checks if c.status is Status.FAIL] == []
    assert [check.file for check in checks if check.status is Status.INFO] == ["text"]
    named = {(check.file, check.name) for check in checks}
    results = r"encoded|scores|drawn|out|prompt_audio_mel|regulated|known|mel_\d|vocoder|pitch|part_s|fifth|\.tokens"
    for file in GOLDEN[family].iterdir():
        keys = [key for key in read_safetensors(file)[0] if re.search(results, key)]
        assert keys
        assert {(file.stem, key) for key in keys} <= named


@pytest.mark.parametrize(("file", "key"), [("llm", "zero_shot.scores"), ("flow", "estimator_13.out")])
def test_one_changed_number_of_cosyvoice_300m_fails(tmp_path: Path, file: str, key: str) -> None:
    shutil.copy(GOLDEN["cosyvoice1"] / f"{file}.safetensors", tmp_path)
    value = read_safetensors(tmp_path / f"{file}.safetensors")[0][key].clone()
    value[0, -1] += 3e-4
    rewrite(tmp_path / f"{file}.safetensors", **{key: value})

    assert [check.name for check in failures(tmp_path, "cosyvoice1")] == [key]


@pytest.mark.parametrize("file", RESULTS)
def test_one_changed_number_fails(tmp_path: Path, file: str) -> None:
    source = GOLDEN["cosyvoice2"]
    key = RESULTS[file]
    for name in {file, *(["frontend"] if file == "e2e_text2wav" else [])}:
        shutil.copy(source / f"{name}.safetensors", tmp_path)
    value = read_safetensors(tmp_path / f"{file}.safetensors")[0][key].clone()
    flat = value.view(-1)
    flat[len(flat) // 2] += 1 if not value.is_floating_point() else 3e-4
    rewrite(tmp_path / f"{file}.safetensors", **{key: value})

    failed = {(check.file, check.name) for check in failures(tmp_path)}
    assert (file, key) in failed or (file == "bistream_mid_stop_error" and failed)


def test_nan_in_the_golden_fails(folder: Path) -> None:
    value = read_safetensors(folder / "flow_estimator.safetensors")[0]["time_emb"].clone()
    value[0, 0] = torch.nan
    rewrite(folder / "flow_estimator.safetensors", time_emb=value)

    assert [check.name for check in failures(folder)] == ["time_emb"]


def test_unknown_files_and_tensors_fail(folder: Path) -> None:
    shutil.copy(folder / "flow_estimator.safetensors", folder / "new_stage.safetensors")
    (folder / "notes.txt").write_text("hello")
    rewrite(folder / "flow_estimator.safetensors", surprise=torch.zeros(3))

    found = {(check.file, check.name): check.note for check in failures(folder)}
    assert found == {
        ("new_stage", ""): "no stage knows this file",
        ("notes.txt", ""): "no stage knows this file",
        ("flow_estimator", "surprise"): "no stage compares this tensor",
    }


def test_missing_listed_file_fails(folder: Path) -> None:
    shapes = {
        key: [list(value.shape), "float32"]
        for key, value in read_safetensors(folder / "flow_estimator.safetensors")[0].items()
    }
    listed = {"flow_estimator": {"tensors": shapes}, "flow_cfm": {"tensors": {}}}
    (folder / "manifest.json").write_text(json.dumps(listed))

    assert [(check.name, check.note) for check in failures(folder)] == [
        ("flow_cfm", "listed in the manifest, but missing")
    ]
    rewrite(folder / "flow_estimator.safetensors", time_in=None, time_emb=None)
    assert "flow_estimator" in {check.name for check in failures(folder)}


def test_damaged_file_fails_alone(folder: Path) -> None:
    rewrite(folder / "flow_estimator.safetensors", out_60_stream1=torch.zeros(2, 80, 59))
    (folder / "hift.safetensors").write_bytes(b"\xff" * 100)
    (folder / "flow_cfm.safetensors").write_bytes((folder / "flow_estimator.safetensors").read_bytes())
    (folder / "silent_tokens.json").write_text("{")

    found = {check.file: check.note for check in failures(folder)}
    assert found["flow_estimator"] == "shape [2, 80, 60], expected [2, 80, 59]"
    assert "hift.safetensors" in found["hift"]
    assert found["flow_cfm"] == "no stage compares this tensor"
    assert "could not be compared" in found["silent_tokens"]


def test_golden_of_the_other_family_fails(folder: Path) -> None:
    assert failures(folder, "cosyvoice3")


def test_missing_golden_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no such golden folder"):
        run_parity(tiny("cosyvoice2"), tmp_path / "missing")
    with pytest.raises(BundleError, match="no such model directory"):
        run_parity(tmp_path / "missing", GOLDEN["cosyvoice2"])
    assert not run_parity(tiny("cosyvoice2"), tmp_path).passed  # nothing compared is nothing proved


def parity(*args: str) -> int:
    return run_command("python -m tools.parity", command, args)


def test_parity_command_prints_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--bundle", str(tiny("cosyvoice2")), "--golden", str(folder)]

    assert parity(*args) == 0
    out = capsys.readouterr().out.splitlines()
    assert any("flow_estimator/out_60_stream1" in line and "(<= 0.0001)" in line for line in out)
    assert out[-1].startswith("cosyvoice2: PASS (2 pass, 0 fail, 1 info)")
    assert parity(*args, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["family"], said["passed"], said["pass"], said["fail"]) == ("cosyvoice2", True, 2, 0)
    assert {check["file"] for check in said["checks"]} == {"flow_estimator", "text"}
    rewrite(folder / "flow_estimator.safetensors", out_60_stream1=torch.zeros(2, 80, 60))
    assert parity(*args, "--failures") == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert parity(*args[:-1], str(folder / "no")) == 2


def test_parity_runs_as_a_module(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["--bundle", str(tiny("cosyvoice2")), "--golden", str(folder / "no")]
    monkeypatch.setattr(sys, "argv", ["", *args])
    with pytest.raises(SystemExit) as refused:
        runpy.run_module("tools.parity", run_name="__main__")  # as python -m, without loading PyTorch again
    assert refused.value.code == 2
    assert "no such golden folder" in capsys.readouterr().err


def test_long_waveforms_are_compared_in_db(tmp_path: Path) -> None:
    wave = torch.sin(torch.arange(2000) / 9)
    write_safetensors(tmp_path / "x.safetensors", {"long": wave, "short": wave[:500], "silent": wave * 0}, {})
    golden = Golden(tmp_path / "x.safetensors")
    checks = CheckList(1000)

    def verdict(key: str, got: Tensor) -> Status:
        checks.wave(golden, key, got)
        return checks.entries[-1].status

    assert verdict("long", wave + 0.003) is Status.PASS  # 47 dB
    assert verdict("long", wave + 0.005) is Status.FAIL  # 43 dB
    assert verdict("long", wave[1:]) is Status.FAIL
    assert verdict("long", wave + torch.nan) is Status.FAIL
    assert verdict("short", wave[:500] + 0.0009) is Status.PASS
    assert verdict("short", wave[:500] + 0.0011) is Status.FAIL
    assert verdict("silent", wave * 0) is Status.PASS
    assert verdict("silent", wave * 1e-6) is Status.FAIL
    assert golden.unused == []
    json.loads(ParityReport("x", tuple(checks.entries)).to_json())  # also with infinite distances


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden folder with the files that bfloat16 changes."""
    path = tmp_path_factory.mktemp("layers")
    for pattern in ("flow_estimator", "llm_cross*", "llm_free*", "debug*", "hift*"):
        for file in GOLDEN["cosyvoice3"].glob(f"{pattern}.safetensors"):
            shutil.copy(file, path)
    return path


def test_bfloat16_errors_are_relative(layers: Path) -> None:
    report = run_parity(tiny("cosyvoice3"), layers, half=True)

    assert [f"{check.file}/{check.name} {check.error}" for check in report.checks if check.status is Status.FAIL] == []
    relative = [check for check in report.checks if check.unit == "relative"]
    assert {check.file for check in relative} >= {"flow_estimator", "llm_cross_lingual"}
    assert max(check.error or 0.0 for check in relative) > 1e-4, "it is really computed in bfloat16"
    skipped = [check.file for check in report.checks if "bfloat16" in check.note]
    assert skipped == [file.stem for file in layers.glob("llm_free*")], "a rounded score can change a draw"
    assert all(check.unit != "relative" for check in report.checks if check.file == "hift"), "the vocoder is float32"


def test_bfloat16_errors_of_cosyvoice_300m_are_relative() -> None:
    report = run_parity(tiny("cosyvoice1"), GOLDEN["cosyvoice1"], half=True)

    assert [f"{c.file}/{c.name} {c.error}" for c in report.checks if c.status is Status.FAIL] == []
    errors = {(check.file, check.name): check.error or 0.0 for check in report.checks if check.unit == "relative"}
    assert {file for file, _ in errors} == {"llm", "flow", "stream"}
    assert errors["stream", "mel_0"] > 1e-4, "it is really computed in bfloat16"
    assert errors["stream", "speech_0"] < 1e-3, "the vocoder is float32"
    assert [c.file for c in report.checks if "bfloat16" in c.note] == ["llm", "llm", "speech"]


def test_wrong_bfloat16_numbers_fail(layers: Path, folder: Path) -> None:
    rewrite(folder / "flow_estimator.safetensors", out_60_stream1=torch.zeros(2, 80, 60))
    report = run_parity(tiny("cosyvoice2"), folder, half=True)
    assert [check.name for check in report.checks if check.status is Status.FAIL] == ["out_60_stream1"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_parity_on_a_missing_device_is_a_typed_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="CUDA"):
        run_parity(tiny("cosyvoice2"), folder, device="cuda")
    bundle = str(tiny("cosyvoice2"))
    assert parity("--bundle", bundle, "--golden", str(folder), "--device", "cuda", "--dtype", "bfloat16") == 2
    assert "CUDA" in capsys.readouterr().err


class Shapes(CheckList):
    """Compares shapes and devices."""

    def measure(self, file: str, name: str, got: Tensor, expected: Tensor, limit: float, unit: str = "") -> None:
        self.add(file, name, got.shape == expected.shape and got.is_meta)

    def wave(self, golden: Golden, key: str, got: Tensor, stride: int = 1) -> None:
        self.close(golden, key, got, 0.0)


def to_meta(networks: Networks) -> Networks:
    """Move the networks and their tables."""
    networks.flow.to("meta")
    for name in ("times", "noise", "time_tables"):
        setattr(networks.flow, name, getattr(networks.flow, name).to("meta"))
    if isinstance(networks.flow, V1Flow):
        networks.flow.encoder.reach_tokens = 0  # so that the tables of relative positions are made again
        networks.hift.to("meta").prepare()
    return networks


@pytest.mark.parametrize("family", FAMILIES)
def test_flow_stages_stay_on_the_device(family: str) -> None:
    """On the meta device an operation with a CPU tensor raises, as it does on CUDA."""
    loaded = load_again(tiny_bundle(family))
    flow = to_meta(loaded).chunked_flow
    checks = Shapes(24_000)
    for prefix, stage in (("flow_estimator", check_estimator), ("flow_inference", check_inference)):
        golden = Golden(GOLDEN[family] / f"{prefix}.safetensors", "meta")
        stage(checks, golden, flow)
    assert len(checks.entries) > 4
    assert all(check.status is Status.PASS for check in checks.entries)


def test_stages_of_cosyvoice_300m_stay_on_the_device() -> None:
    loaded = to_meta(load_again(tiny_bundle("cosyvoice1")))
    checks = Shapes(24_000)
    for file, stage in (("flow", check_v1_estimator), ("stream", check_v1_stream)):
        stage(checks, Golden(GOLDEN["cosyvoice1"] / f"{file}.safetensors", "meta"), loaded)
    assert len(checks.entries) > 4
    assert [check.name for check in checks.entries if check.status is not Status.PASS] == []
