"""Voice packs: both schemas, their recordings, and the commands that create, check and pack them."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from tests.fakes.recordings import SAID, speech, wav
from tts_worker.cli import main
from tts_worker.errors import ConfigError, IllegalCommand
from tts_worker.features.voicepack.packs import check_voicepack, init_voicepack, pack_voicepack
from tts_worker.voices.packs import read_voicepack

OLDER = """
model_id: cosyvoice2-en-base
name: "An English Base Voice"
family: cosyvoice2
version: "2.0.1"
languages: [en]
capabilities: {streaming: true, zero_shot: true, lora: false}
resources: {min_vram_gb: 4.0}
audio: {sample_rate: 24000, output_format: pcm_s16le}
performance: {typical_rtf: 0.2}
reference_audio: {default_reference: ref/seed.wav, min_duration_sec: 3.0}
tags: [english, calm]
license: Apache-2.0
author: an author
source_url: https://example.com
created_at: 2024-09-15
"""


def add_prompt(folder: Path, style: str, seconds: float = 4, text: str = SAID) -> None:
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    (folder / "prompts" / f"{style}.wav").write_bytes(wav(speech(seconds, 24_000)))
    if text:
        (folder / "prompts" / f"{style}.txt").write_text(text, "utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cosyvoice" / "anna"
    init_voicepack(folder, "zh", "CC-BY-4.0")
    add_prompt(folder, "neutral")
    return folder


def test_new_pack_is_read_with_its_styles(folder: Path) -> None:
    add_prompt(folder, "happy", text="")
    installed = read_voicepack(folder)
    pack = installed.pack
    assert (pack.name, pack.family, pack.languages, pack.license) == ("anna", "cosyvoice", ("zh",), "CC-BY-4.0")
    assert [(prompt.style, prompt.text) for prompt in installed.prompts()] == [("neutral", SAID), ("happy", "")]
    with pytest.raises(IllegalCommand, match="exists"):
        init_voicepack(folder, "zh", "")
    with pytest.raises(ConfigError, match="name"):
        init_voicepack(folder.parent / "a b", "zh", "")


def test_older_schema_takes_its_name_from_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cosyvoice2" / "en-base"
    (folder / "ref").mkdir(parents=True)
    (folder / "ref" / "seed.wav").write_bytes(wav(speech(4)))
    (folder / "metadata.yaml").write_text(OLDER, "utf-8")
    installed = read_voicepack(folder)
    pack = installed.pack
    assert (pack.name, pack.title, pack.family) == ("en-base", "An English Base Voice", "cosyvoice2")
    assert (pack.capabilities, pack.tags, pack.sample_rate) == (("streaming", "zero_shot"), ("english", "calm"), 24_000)
    assert [prompt.file.name for prompt in installed.prompts()] == ["seed.wav"]


@pytest.mark.parametrize("prompt", ["ref/seed.wav", "{audio: ref/seed.wav, transcript: What is said.}"])
def test_schema_that_describes_a_model_is_read(tmp_path: Path, prompt: str) -> None:
    folder = tmp_path / "cosyvoice2" / "en-base"
    (folder / "ref").mkdir(parents=True)
    (folder / "ref" / "seed.wav").write_bytes(wav(speech(4)))
    (folder / "metadata.yaml").write_text(
        "model_info: {name: A Base Voice, family: cosyvoice2, version: 2.0.5, vram_mb: 1500, gpu_required: true}\n"
        f"language: en\nsample_rate: 24000\nspeakers: [default]\ncitation: a paper\nprompts: {{neutral: {prompt}}}\n",
        "utf-8",
    )
    installed = read_voicepack(folder)
    pack = installed.pack
    assert (pack.name, pack.title, pack.family, pack.languages) == ("en-base", "A Base Voice", "cosyvoice2", ("en",))
    [recording] = installed.prompts()
    assert (recording.file.name, recording.text) == ("seed.wav", "What is said." if "audio" in prompt else "")


def test_unknown_key_of_the_present_schema_is_refused(folder: Path) -> None:
    (folder / "metadata.yaml").write_text("licence: CC0", "utf-8")
    with pytest.raises(ConfigError, match="licence"):
        read_voicepack(folder)


def test_check_reports_each_recording(folder: Path) -> None:
    assert check_voicepack(folder).ok
    add_prompt(folder, "happy", seconds=1)
    add_prompt(folder, "sad", text="x" * 500)
    report = check_voicepack(folder)
    fatal = {problem.file: problem.what for problem in report.problems if problem.fatal}
    assert "1.0 s of speech" in fatal["prompts/happy.wav"]
    assert "characters per second" in fatal["prompts/sad.wav"]
    with pytest.raises(ConfigError, match="happy"):
        pack_voicepack(folder, folder.parent / "anna.zip")
    assert sorted(path.name for path in folder.parent.iterdir()) == ["anna"]


@pytest.mark.parametrize(
    ("styles", "message"),
    [
        ("{neutral: {prompt: ../../secret.wav}}", "outside the voice pack"),
        ("{neutral: {prompt: link.wav}}", "outside the voice pack"),
        ("{happy: {}}", "no recording prompts/happy.wav"),
        ("{neutral: {prompt: prompts/none.wav}}", "no recording"),
        ("{'a/b': {}}", "styles"),
        ("{neutral: {code: x}}", "styles.neutral.code"),
    ],
)
def test_unsafe_or_missing_recording_is_refused(folder: Path, styles: str, message: str) -> None:
    (folder.parent / "secret.wav").write_bytes(b"x")
    os.symlink(folder.parent / "secret.wav", folder / "link.wav")
    (folder / "metadata.yaml").write_text(f"styles: {styles}", "utf-8")
    with pytest.raises(ConfigError, match=message):
        read_voicepack(folder).prompts()


def test_commands_create_check_and_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cosyvoice" / "ben"
    assert main(["voicepack", "init", str(folder)]) == 0
    assert main(["voicepack", "check", str(folder)]) == 1
    add_prompt(folder, "neutral")
    add_prompt(folder, "sad")
    assert main(["voicepack", "check", str(folder)]) == 0
    out = tmp_path / "ben.zip"
    assert main(["voicepack", "pack", str(folder), "--out", str(out)]) == 0
    first = out.read_bytes()
    assert main(["voicepack", "pack", str(folder), "--out", str(out)]) == 0
    assert out.read_bytes() == first
    capsys.readouterr()
    with zipfile.ZipFile(out) as archive:
        assert archive.namelist() == [
            "cosyvoice/ben/metadata.yaml",
            *(f"cosyvoice/ben/prompts/{style}.{kind}" for style in ("neutral", "sad") for kind in ("wav", "txt")),
        ]
        archive.extractall(tmp_path / "unpacked")
    assert check_voicepack(tmp_path / "unpacked" / "cosyvoice" / "ben").ok
