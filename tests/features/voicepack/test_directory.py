"""What the command line does with model directories and voices, end to end on tiny ones."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.unit.cosyvoice.bundles import DATA, GOLDEN, ONE_FAMILY, copy_of, tiny
from tools.random_bundle.writer import write_random_bundle
from tts_worker.commands import model_directory
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.weights import PARTS
from tts_worker.errors import BundleError, ConfigError, IllegalCommand, MissingExtra, UnknownModel
from tts_worker.features.voicepack import directory as commands
from tts_worker.features.voicepack import manifest
from tts_worker.features.voicepack.manifest import ModelFile, PublishedModel
from tts_worker.models.bundles.report import Problem
from tts_worker.voices.files import load_voice, stored_voices


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_converted_directory_holds_the_same_model(tmp_path: Path, family: str) -> None:
    steps: list[str] = []

    report = commands.convert(tiny(family), tmp_path / "out", step=steps.append)

    assert report.ok
    assert report.problems == ()
    assert steps == ["llm.safetensors", "flow.safetensors", "hift.safetensors"]
    assert not list((tmp_path / "out").glob("*.pt")) or [f.name for f in (tmp_path / "out").glob("*.pt")] == [
        "spk2info.pt"
    ]
    for part in PARTS:
        before = Bundle.open(tiny(family)).load_weights(part)
        after = Bundle.open(tmp_path / "out").load_weights(part)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)


def test_bf16_leaves_the_vocoder_in_fp32(tmp_path: Path) -> None:
    path = copy_of("cosyvoice3", tmp_path)
    state = torch.load(path / "llm.pt", weights_only=True)
    torch.save({key: value * 2 for key, value in state.items()}, path / "llm.rl.pt")

    assert commands.convert(path, path, "bf16").ok

    from tts_worker.engine.cosyvoice.bundle.tensor_files import read_tensors

    kinds = {f.name: {str(t.dtype) for t in read_tensors(f).values()} for f in sorted(path.glob("*.safetensors"))}
    assert kinds == {
        "flow.safetensors": {"torch.bfloat16"},
        "hift.safetensors": {"torch.float32"},
        "llm.rl.safetensors": {"torch.bfloat16"},
        "llm.safetensors": {"torch.bfloat16"},
    }
    tuned = Bundle.open(path, rl=True).load_weights("llm")["llm_decoder.weight"]
    assert torch.equal(tuned, (state["llm_decoder.weight"] * 2).bfloat16().float())


def test_invalid_weights_are_not_converted(tmp_path: Path) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    (path / "flow.pt").write_bytes(b"cut")

    with pytest.raises(BundleError, match=r"flow\.pt"):
        commands.convert(path, tmp_path / "out")
    with pytest.raises(ConfigError, match="fp32, bf16"):
        commands.convert(path, tmp_path / "out", "int4")


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> PublishedModel:
    """The tiny bundle as if it had been published."""
    files = []
    for file in sorted(tiny("cosyvoice2").rglob("*.*")):
        path = str(file.relative_to(tiny("cosyvoice2")))
        raw = file.read_bytes()
        files.append(ModelFile(path, len(raw), hashlib.sha256(raw).hexdigest()))
    model = PublishedModel("tiny2", "Tiny2", {}, tuple(files))
    monkeypatch.setattr(manifest, "PUBLISHED", (model,))
    monkeypatch.setattr(commands, "PUBLISHED", (model,))
    return model


def test_published_files_are_verified(claimed: PublishedModel, tmp_path: Path) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    steps: list[str] = []

    report = commands.check(path, "tiny2", step=steps.append)

    assert report.ok
    assert [problem.file for problem in report.problems] == steps == [file.path for file in claimed.files]
    assert all(problem.what.startswith("verified") for problem in report.problems)
    assert commands.check(path).problems == report.problems
    assert commands.check(path, hashes=False).problems == ()


def test_unpublished_files_fail_only_with_a_claimed_name(claimed: PublishedModel, tmp_path: Path) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    state = torch.load(path / "hift.pt", weights_only=True)
    torch.save(dict(list(state.items())[::-1]), path / "hift.pt")
    raw = (path / "cosyvoice2.yaml").read_bytes()
    (path / "cosyvoice2.yaml").write_bytes(raw + b"# more\n")
    (path / "configuration.json").write_bytes(b" " + (path / "configuration.json").read_bytes()[1:])

    strict = commands.check(path, "tiny2")
    lenient = commands.check(path)

    fatal = {problem.file: problem.what for problem in strict.problems if problem.fatal}
    assert f"was published with {len(raw)}" in fatal.pop("cosyvoice2.yaml")
    assert set(fatal) == {"hift.pt"}
    assert "configuration.json" in {problem.file for problem in strict.problems if "hash" in problem.what}
    assert lenient.ok
    with pytest.raises(UnknownModel):
        commands.check(path, "unknown")


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("CosyVoice-BlankEN/vocab.json", b'{"a": 0', "not a valid BPE vocabulary"),
        ("CosyVoice-BlankEN/merges.txt", b"#version: 0.2\nzz zz\n", "not a valid BPE vocabulary"),
        ("CosyVoice-BlankEN/tokenizer_config.json", b"{", "is not a tokenizer configuration"),
        ("spk2info.pt", b"", "spk2info.pt: cannot be read"),
    ],
)
def test_unreadable_text_files_and_speakers_are_reported(
    tmp_path: Path, file: str, content: bytes, complaint: str
) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    (path / file).write_bytes(content)

    report = commands.check(path)

    assert not report.ok
    assert complaint in str(report)


def test_damaged_whisper_vocabulary_is_reported(tmp_path: Path) -> None:
    bundle = write_random_bundle(tmp_path / "first", "cosyvoice1", prompt_models=False)
    assert commands.check(bundle.path).ok
    bundle.whisper_vocabulary.write_bytes(bundle.whisper_vocabulary.read_bytes()[:100])

    report = commands.check(bundle.path)

    assert [problem.file for problem in report.problems if problem.fatal] == ["multilingual.tiktoken"]


def test_missing_published_file_fails_only_with_a_claimed_name(claimed: PublishedModel, tmp_path: Path) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    (path / "spk2info.pt").unlink()
    (path / "campplus.onnx").unlink()

    fatal = {problem.file for problem in commands.check(path, "tiny2").problems if problem.fatal}

    assert fatal == {"spk2info.pt", "campplus.onnx"}
    assert commands.check(path).ok


def test_converted_weights_stand_for_the_published_ones(claimed: PublishedModel, tmp_path: Path) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    commands.convert(path, path)
    for part in PARTS:
        (path / f"{part}.pt").unlink()

    assert commands.check(path, "tiny2").ok


def test_report_is_valid_json(tmp_path: Path) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    (path / "llm.pt").unlink()

    told = json.loads(commands.report_json(commands.check(path)))

    assert told["ok"] is False
    assert told["path"] == str(path)
    assert [problem["file"] for problem in told["problems"]] == ["llm.pt"]


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_added_voice_can_be_loaded(tmp_path: Path, family: str) -> None:
    audio = GOLDEN[family] / "prompt_24k.wav"

    voice = commands.add_voice(tiny(family), tmp_path, "zoe", audio, "What was said.")

    assert stored_voices(tmp_path) == ["zoe"]
    assert load_voice(tmp_path, "zoe").content_hash == voice.content_hash
    with pytest.raises(IllegalCommand, match="already"):
        commands.add_voice(tiny(family), tmp_path, "zoe", audio, "What was said.")
    commands.add_voice(tiny(family), tmp_path, "zoe", audio, "Something else.", replace=True)
    assert load_voice(tmp_path, "zoe").prompt_text == "Something else."


def test_reference_speakers_are_imported(tmp_path: Path) -> None:
    saved = DATA / "golden" / "v3" / "spk2info_with_zero_shot.pt"

    names = commands.import_speakers(tiny("cosyvoice3"), tmp_path, saved)

    assert sorted(names) == stored_voices(tmp_path) == ["my_zero_shot_spk", "tiny_spk"]
    assert len(load_voice(tmp_path, "my_zero_shot_spk").tokens) == 75
    assert commands.import_speakers(tiny("cosyvoice3"), tmp_path, replace=True) == ["tiny_spk"]


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_directory, "find_spec", lambda name: None)

    with pytest.raises(MissingExtra, match=r'pip install "\.\[cosyvoice\]"'):
        commands.check(tiny("cosyvoice2"))


def test_report_has_one_line_per_problem() -> None:
    report = commands.check(tiny("cosyvoice2"), hashes=False)
    spoiled = replace(report, problems=(manifest_problem("a.pt", True), manifest_problem("b.pt", False)))

    assert str(report).endswith("complete and valid")
    assert str(spoiled).splitlines()[1:] == ["  error  a.pt: is odd", "  note   b.pt: is odd"]


def manifest_problem(file: str, fatal: bool) -> Problem:
    return Problem(file, "is odd", fatal)
