"""A model directory: every spelling of good weights loads, everything bad is listed by name, and no code runs."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.cosyvoice.bundles import FAMILIES, copy_of, tiny
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.tensor_files import (
    read_pickled,
    read_safetensors,
    read_tensors,
    write_safetensors,
)
from tts_worker.engine.cosyvoice.bundle.weights import PARTS, expected_shapes
from tts_worker.errors import BundleError


def load(file: Path) -> dict[str, Tensor]:
    loaded: dict[str, Tensor] = torch.load(file, weights_only=True)
    return loaded


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("family", FAMILIES)
def test_complete_bundle_is_valid_and_loads_its_weights(family: str) -> None:
    bundle = Bundle.open(tiny(family))

    assert bundle.validate().problems == ()
    for part in PARTS:
        weights = bundle.load_weights(part)
        saved = load(tiny(family) / f"{part}.pt")
        assert same(weights, {key: saved[key] for key in weights})
        assert weights.keys() == expected_shapes(bundle.config, part).keys()


def old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        key.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): value
        for key, value in state.items()
    }


def gan_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"generator.{key}": value for key, value in state.items()}


def doubled_f0(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.double() if key.startswith("f0_predictor") else value for key, value in state.items()}


def legacy_format(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spelling", [old_names, gan_prefix, doubled_f0, legacy_format])
def test_vocoder_weight_layouts_are_equivalent(
    tmp_path: Path, family: str, spelling: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> None:
    path = copy_of(family, tmp_path)
    expected = Bundle.open(path).load_weights("hift")

    zipped = spelling is not legacy_format
    state = spelling(load(path / "hift.pt"))
    (path / "hift.pt").unlink()  # what is loaded is mapped: files are replaced, never written into
    torch.save(state, path / "hift.pt", _use_new_zipfile_serialization=zipped)

    assert same(Bundle.open(path).load_weights("hift"), expected)
    assert Bundle.open(path).validate().ok


def test_safetensors_are_preferred_over_pt(tmp_path: Path) -> None:
    path = copy_of("cosyvoice3", tmp_path)
    expected = {part: Bundle.open(path).load_weights(part) for part in PARTS}
    for part in PARTS:
        state = load(path / f"{part}.pt")
        state.pop("llm.model.lm_head.weight", None)
        state.pop("decoder.estimator.rotary_embed.inv_freq", None)
        write_safetensors(path / f"{part}.safetensors", state, {})
        (path / f"{part}.pt").unlink()
        (path / f"{part}.pt").write_bytes(b"unused")

    bundle = Bundle.open(path)

    assert bundle.validate().problems == ()
    assert all(same(bundle.load_weights(part), expected[part]) for part in PARTS)


def test_rl_language_model_can_be_selected(tmp_path: Path) -> None:
    path = copy_of("cosyvoice3", tmp_path)
    state = load(path / "llm.pt")
    torch.save({key: value + 1 for key, value in state.items()}, path / "llm.rl.pt")

    tuned = Bundle.open(path, rl=True).load_weights("llm")

    assert torch.equal(tuned["llm_decoder.weight"], state["llm_decoder.weight"] + 1)
    assert torch.equal(Bundle.open(path).load_weights("llm")["llm_decoder.weight"], state["llm_decoder.weight"])


def test_weights_load_in_the_requested_dtype() -> None:
    weights = Bundle.open(tiny("cosyvoice2")).load_weights("llm", torch.bfloat16)

    assert {value.dtype for value in weights.values()} == {torch.bfloat16}


class Code:
    """A pickle that would run a command."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


def with_code(path: Path) -> None:
    path.write_bytes(pickle.dumps({"conv_pre.bias": Code()}))


def with_code_in_a_zip(path: Path) -> None:
    torch.save({"conv_pre.bias": Code()}, path)


@pytest.mark.parametrize("attack", [with_code, with_code_in_a_zip])
def test_pickle_with_code_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Callable[[Path], None]
) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    attack(path / "hift.pt")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(BundleError, match=r"hift\.pt.*it was not run"):
        Bundle.open(path).load_weights("hift")

    assert not (tmp_path / "owned").exists()
    assert "it was not run" in str(Bundle.open(path).validate())


@pytest.mark.parametrize("zipped", [True, False])
def test_tensor_larger_than_its_data_is_refused(tmp_path: Path, zipped: bool) -> None:
    """Stride 0: 4 GB that a file of a few hundred bytes claims to hold."""
    file = tmp_path / "hift.pt"
    torch.save({"weight": [torch.zeros(1).expand(1 << 30)]}, file, _use_new_zipfile_serialization=zipped)
    assert file.stat().st_size < 10_000
    with pytest.raises(BundleError, match="with too little data"):
        read_pickled(file)


def test_compressed_weights_are_refused_before_they_are_read(tmp_path: Path) -> None:
    stored, bomb = tmp_path / "stored.pt", tmp_path / "hift.pt"
    torch.save({"weight": torch.zeros(1_000_000)}, stored)
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    assert bomb.stat().st_size < 20_000
    assert read_pickled(stored)["weight"].shape == (1_000_000,)
    with pytest.raises(BundleError, match="would take 4 MB"):
        read_pickled(bomb)


def test_sparse_tensor_is_refused(tmp_path: Path) -> None:
    index = torch.zeros((1, 1), dtype=torch.long)
    value = torch.ones(1)
    huge = torch.sparse_coo_tensor(index, value, (1 << 40,), check_invariants=True)
    torch.save({"weight": huge}, tmp_path / "hift.pt")
    with pytest.raises(BundleError, match="sparse"):
        read_pickled(tmp_path / "hift.pt")


def damage(part: str, change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        state = OrderedDict((key, value.clone()) for key, value in load(path / f"{part}.pt").items())
        changed = change(state)
        torch.save(changed if isinstance(changed, (dict, list)) else state, path / f"{part}.pt")

    return apply


def cut(name: str, share: float) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        raw = (path / name).read_bytes()
        (path / name).write_bytes(raw[: int(len(raw) * share)])

    return apply


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def lfs_pointer(name: str) -> Callable[[Path], None]:
    """What a clone without Git LFS has instead of a large file."""

    def apply(path: Path) -> None:
        digest = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
        (path / name).unlink(missing_ok=True)
        (path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 12345\n")

    return apply


def swap(path: Path) -> None:
    (path / "flow.pt").rename(path / "x.pt")
    (path / "hift.pt").rename(path / "flow.pt")
    (path / "x.pt").rename(path / "hift.pt")


def of_the_other_family(part: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        other = "cosyvoice2" if path.name == "cosyvoice3" else "cosyvoice3"
        shutil.copy(tiny(other) / f"{part}.pt", path / f"{part}.pt")

    return apply


ALPHA = "resblocks.0.activations1.0.alpha"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (remove("llm.pt"), "llm.pt: is missing"),
        (remove("CosyVoice-BlankEN/merges.txt"), "merges.txt: is missing"),
        (cut("flow.pt", 0.5), "flow.pt: cannot be read"),
        (cut("flow.pt", 0.0), "flow.pt: cannot be read"),
        (lfs_pointer("llm.pt"), "llm.pt: is a Git LFS pointer, not the file it stands for; run: git lfs pull"),
        (lfs_pointer("flow.safetensors"), "flow.safetensors: is a Git LFS pointer"),
        (lfs_pointer("campplus.onnx"), "campplus.onnx: is a Git LFS pointer"),
        (cut("campplus.onnx", 0.7), "campplus.onnx: is truncated"),
        (swap, "flow.pt: this is a vocoder (hift.pt)"),
        (of_the_other_family("flow"), "'s flow (flow.pt), not the expected file"),
        (of_the_other_family("llm"), "llm_decoder.weight is [6"),
        (of_the_other_family("hift"), "wrong shape (8): "),
        (damage("hift", lambda s: s.pop(ALPHA)), f"missing (1): {ALPHA}"),
        (damage("hift", lambda s: s.update({ALPHA: s[ALPHA][:-1]})), f"wrong shape (1): {ALPHA} is [15], not [16]"),
        (damage("hift", lambda s: s.update({ALPHA: s[ALPHA].int()})), "not floating point (1)"),
        (damage("hift", lambda s: s[ALPHA].fill_(float("nan"))), f"NaN or infinite values in (1): {ALPHA}"),
        (damage("hift", lambda s: s[ALPHA].fill_(float("-inf"))), "NaN or infinite values in (1)"),
        (damage("hift", lambda s: s[ALPHA].fill_(1e30)), "implausibly large values: (1)"),
        (damage("hift", lambda s: s.update({"generator." + ALPHA: s[ALPHA]})), "under two names"),
        (damage("hift", lambda s: list(s.values())), "hift.pt: contains something other than named tensors"),
        (damage("hift", lambda s: {**s, "step": 7}), "hift.pt: contains something other than named tensors"),
    ],
)
def test_each_damage_is_reported(tmp_path: Path, family: str, harm: Callable[[Path], None], complaint: str) -> None:
    path = copy_of(family, tmp_path)
    harm(path)

    report = Bundle.open(path).validate()

    assert not report.ok
    assert complaint.replace("llm.pt: is", f"{path / 'llm.pt'}: is") in str(report) or complaint in str(report)
    with pytest.raises(BundleError):
        report.raise_if_bad()


def test_one_report_lists_all_problems(tmp_path: Path) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    for harm in (
        remove("llm.pt"),
        cut("flow.pt", 0.3),
        remove("campplus.onnx"),
        remove("CosyVoice-BlankEN/vocab.json"),
    ):
        harm(path)
    damage("hift", lambda s: s.pop(ALPHA))(path)

    report = Bundle.open(path).validate()

    assert [(problem.file, problem.fatal) for problem in report.problems] == [
        ("llm.pt", True),
        ("flow.pt", True),
        ("hift.pt", True),
        ("CosyVoice-BlankEN/vocab.json", True),
        ("campplus.onnx", False),
    ]


def test_unknown_and_zero_tensors_are_notes(tmp_path: Path) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    damage(
        "flow", lambda s: s.update(extra=torch.ones(1), **{"input_embedding.weight": s["input_embedding.weight"] * 0})
    )(path)

    report = Bundle.open(path).validate()

    assert report.ok
    assert "not used (1): extra" in str(report)
    assert "all zero: (1): input_embedding.weight" in str(report)
    assert "extra" not in Bundle.open(path).load_weights("flow")


@pytest.mark.parametrize(
    ("prepare", "complaint"),
    [
        (lambda path: shutil.rmtree(path), "no such model directory"),
        (remove("cosyvoice2.yaml"), "holds none of cosyvoice.yaml, cosyvoice2.yaml, cosyvoice3.yaml"),
        (lambda path: (path / "cosyvoice2.yaml").rename(path / "cosyvoice3.yaml"), "rename the file to cosyvoice2"),
        (
            lambda path: (path / "cosyvoice2.yaml").rename(path / "cosyvoice.yaml"),
            "cosyvoice.yaml: describes a cosyvoice2 model; rename the file to cosyvoice2.yaml",
        ),
        (lambda path: (path / "cosyvoice2.yaml").write_bytes(b"\xff\xfe"), "not readable UTF-8 text"),
        (lambda path: (path / "cosyvoice2.yaml").write_bytes(b"#" * 2_000_000), "larger than"),
        (remove("CosyVoice-BlankEN/config.json"), "config.json: is missing"),
        (lambda path: (path / "CosyVoice-BlankEN/config.json").write_text("{"), "config.json: is not valid JSON"),
        (lambda path: (path / "CosyVoice-BlankEN/config.json").write_text("[1]"), "config.json: must be a mapping"),
        (lambda path: (path / "CosyVoice-BlankEN/config.json").write_text("[" * 100_000), "config.json: is not valid"),
    ],
)
def test_non_model_directory_is_refused(tmp_path: Path, prepare: Callable[[Path], object], complaint: str) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    prepare(path)

    with pytest.raises(BundleError) as raised:
        Bundle.open(path)

    assert complaint in raised.value.message


def test_yaml_of_an_older_generation_is_ignored(tmp_path: Path) -> None:
    path = copy_of("cosyvoice2", tmp_path)
    (path / "cosyvoice.yaml").write_text("a: 1")

    assert Bundle.open(path).config.family == "cosyvoice2"


@pytest.mark.parametrize("rl", [False, True])
def test_the_other_language_model_is_named_if_only_it_is_there(tmp_path: Path, rl: bool) -> None:
    path = copy_of("cosyvoice3", tmp_path)
    there, missing = ("llm.pt", "llm.rl.pt") if rl else ("llm.rl.pt", "llm.pt")
    if not rl:
        next(path.glob("llm.*")).rename(path / there)

    hint = f"{missing}: is missing, but there is {there}: set rl to {str(not rl).lower()}"
    with pytest.raises(BundleError, match=re.escape(hint)):
        Bundle.open(path, rl=rl).load_weights("llm")
    assert hint in str(Bundle.open(path, rl=rl).validate())


def test_safetensors_are_memory_mapped_copy_on_write(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    write_safetensors(file, {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(True), "c": torch.empty(0, 4)}, {})
    before = file.read_bytes()

    read = read_tensors(file)
    read["a"] += 1

    assert read["a"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert read["b"].item() is True
    assert read["c"].shape == (0, 4)
    assert file.read_bytes() == before


def test_written_file_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {
        "half": torch.randn(3, 5).half(),
        "brain": torch.randn(7).bfloat16(),
        "wide": torch.randn(2, 2, 2).double(),
        "ids": torch.arange(9, dtype=torch.int32).reshape(3, 3).t(),
        "byte": torch.arange(5, dtype=torch.uint8),
        "one": torch.tensor(3.5),
    }
    write_safetensors(tmp_path / "ours.safetensors", tensors, {"writer": "tts-worker"})
    save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / "theirs.safetensors")

    theirs, metadata = read_safetensors(tmp_path / "theirs.safetensors")
    ours = load_file(tmp_path / "ours.safetensors")

    assert metadata == {}
    assert read_safetensors(tmp_path / "ours.safetensors")[1] == {"writer": "tts-worker"}
    for key, value in tensors.items():
        assert torch.equal(ours[key], value)
        assert torch.equal(theirs[key], value)


def test_write_error_leaves_no_partial_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()

    with pytest.raises(BundleError, match="cannot be written"):
        write_safetensors(tmp_path / "taken", {"a": torch.ones(1)}, {})

    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]
