"""Families of fast voices and their package: which voices are good enough, and what is shipped of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tools.train.fast import package as packages
from tools.train.fast.evaluate import TEACHER, Figures, file_hash
from tools.train.fast.family import FamilyConfig, train_family, verdicts
from tools.train.fast.package import Speaker, add_voice, shortcomings, voices_table, write_table
from tools.train.fast.runner import FastConfig
from tts_worker.engine.cpu.hibari.model import default_model_path
from tts_worker.errors import ConfigError
from tts_worker.voices.packs import read_voicepack

PACKAGE = Path(__file__).parents[3] / "packages" / "tts-worker-voices"
GOOD = Figures(0.002, 4.25, 0.04, 0.88, (120.0, 180.0, 240.0), 100.0, 0.009, 60.0)
THEIRS = Figures(0.0, 4.35, 0.04, 0.9, (118.0, 182.0, 245.0), 140.0)


def scored(run: Path, name: str, voice: Figures = GOOD) -> None:
    """Lay out the folder of a scored voice; its weights are those of ``heart``."""
    run.mkdir(parents=True)
    shutil.copyfile(default_model_path(), run / "model.onnx")
    scores = {
        "voice": name,
        "model_sha256": file_hash(run / "model.onnx"),
        "config": {"style": name},
        "figures": {TEACHER: asdict(THEIRS), name: asdict(voice)},
    }
    (run / "scores.json").write_text(json.dumps(scores))
    (run / "prosody.jsonl").write_text("{}\n")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package without voices."""
    folder = tmp_path / "package"
    (folder / "some_voices" / "voicepacks").mkdir(parents=True)
    (folder / "scores").mkdir()
    (folder / "pyproject.toml").write_text('[project.entry-points."tts_worker.cpu_voices"]\n\n[tool]\n')
    (folder / "README.md").write_text("Before.\n\n<!-- voices -->\nold\n<!-- end of voices -->\n\nAfter.\n")
    return folder


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        ({}, []),
        ({"wer": 0.016}, ["WER 1.6% > 1.5%"]),
        ({"mos": 4.15}, ["DistillMOS 0.20 below its teacher"]),
        ({"mos": 4.05}, ["DistillMOS 4.05 < 4.1", "DistillMOS 0.30 below its teacher"]),
        ({"similarity": 0.85}, ["similarity 0.85 < 0.86"]),
        ({"similarity": None}, []),
        ({"pitch_hz": (105.0, 172.0, 230.0)}, ["pitch 172.0 Hz, its teacher's 182.0 Hz"]),
        ({"pitch_hz": (130.0, 180.0, 230.0)}, ["79% of its teacher's range of pitch"]),
        ({"word_error_ms": 90.0}, ["words 90.0 ms from where they are heard"]),
    ],
)
def test_voice_that_falls_short_is_told_why(change: dict[str, object], problems: list[str]) -> None:
    assert shortcomings(replace(GOOD, **change), THEIRS) == problems  # type: ignore[arg-type]


def test_packed_voice_is_complete(tmp_path: Path, package: Path) -> None:
    scored(tmp_path / "bf_anna", "bf_anna")
    for _ in range(2):
        add_voice(tmp_path / "bf_anna", package)
    installed = read_voicepack(package / "some_voices" / "voicepacks" / "hibari" / "bf_anna")
    pack = installed.pack
    assert (pack.languages, pack.aliases, pack.gender) == (("en-GB",), ("anna",), "female")
    assert pack.model_sha256 == file_hash(installed.folder / "model.onnx")
    assert pack.loudness_lufs == pytest.approx(-25.9, abs=1)
    assert "Kokoro's bf_anna" in (pack.license or "")
    project = (package / "pyproject.toml").read_text()
    assert project == '[project.entry-points."tts_worker.cpu_voices"]\nbf_anna = "some_voices"\n\n[tool]\n'
    assert (package / "scores" / "bf_anna-prosody.jsonl").is_file()
    readme = (package / "README.md").read_text()
    assert readme.startswith("Before.\n\n<!-- voices -->\n| voice |")
    assert "| `bf_anna`, `anna` | British English, female | 0.2 % | 4.25 ± 0.04 (4.35) | 0.88 (0.90) |" in readme
    assert readme.endswith("<!-- end of voices -->\n\nAfter.\n")


def test_voice_that_falls_short_is_not_packed(tmp_path: Path, package: Path) -> None:
    scored(tmp_path / "am_anton", "am_anton", replace(GOOD, mos=4.0))
    with pytest.raises(ConfigError, match=r"am_anton is not good enough: DistillMOS 4.00 < 4.1; DistillMOS 0.35"):
        add_voice(tmp_path / "am_anton", package)
    assert not list((package / "some_voices").rglob("*.onnx"))


def test_scores_of_another_model_are_refused(tmp_path: Path, package: Path) -> None:
    scored(tmp_path / "am_anton", "am_anton")
    (tmp_path / "am_anton" / "model.onnx").write_bytes(b"another")
    with pytest.raises(ConfigError, match="evaluate it again"):
        add_voice(tmp_path / "am_anton", package)


def test_readme_without_a_place_for_the_table_is_refused(package: Path) -> None:
    (package / "README.md").write_text("Nothing.")
    with pytest.raises(ConfigError, match="has no lines <!-- voices -->"):
        write_table(package)


def test_table_of_the_package_is_that_of_its_scores() -> None:
    assert voices_table(PACKAGE) in (PACKAGE / "README.md").read_text("utf-8")


def test_name_of_another_language_is_refused() -> None:
    assert Speaker.of("bm_george") == Speaker("george", "en-GB", "British English", "male")
    with pytest.raises(ConfigError, match="'zf_xiaobei' is not"):
        Speaker.of("zf_xiaobei")


# -- families ---------------------------------------------------------------------------------------------------------


def family(path: Path, voices: str) -> FamilyConfig:
    path.write_text(f"voices: {{{voices}}}\nspoken_minutes: 2\n")
    return FamilyConfig.load(path)


def test_voices_are_trained_in_order_and_once(tmp_path: Path) -> None:
    config = family(tmp_path / "f.yaml", "bf_anna: heart, am_anton: heart, bf_berta: bf_anna")
    scored(tmp_path / "am_anton", "am_anton")
    trained: list[tuple[FastConfig, Path]] = []
    train_family(config, tmp_path, lambda voice, run: trained.append((voice, run)))
    assert [(voice.name, voice.start, voice.language, run) for voice, run in trained] == [
        ("bf_anna", "", "en-GB", tmp_path / "bf_anna"),
        ("bf_berta", "../bf_anna/model.onnx", "en-GB", tmp_path / "bf_berta"),
    ]
    assert all(voice.spoken_minutes == 2 for voice, _ in trained)


def test_verdict_of_each_voice(tmp_path: Path) -> None:
    config = family(tmp_path / "f.yaml", "bf_anna: heart, am_anton: heart, am_bert: am_anton")
    scored(tmp_path / "bf_anna", "bf_anna")
    scored(tmp_path / "am_anton", "am_anton", replace(GOOD, similarity=0.5))
    assert list(verdicts(config, tmp_path)) == [
        "bf_anna: good",
        "am_anton: similarity 0.5 < 0.86",
        "am_bert: not trained",
    ]


@pytest.mark.parametrize(
    ("voices", "problem"),
    [
        ("bf_anna: bf_berta, bf_berta: heart", "bf_anna begins with 'bf_berta', which is not trained before it"),
        ("anna: heart", "'anna' is not Kokoro's name"),
    ],
)
def test_wrong_family_is_refused(tmp_path: Path, voices: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        family(tmp_path / "f.yaml", voices)


def test_family_of_the_repository_is_valid() -> None:
    config = FamilyConfig.load(Path(packages.__file__).with_name("family.yaml"))
    voices = [Speaker.of(name) for name in config.voices]
    assert sum(voice.gender == "male" for voice in voices) == sum(voice.gender == "female" for voice in voices) + 1 == 6
    assert sum(voice.language == "en-GB" for voice in voices) >= 4
