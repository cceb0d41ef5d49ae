"""Voices that are installed as packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest

from tts_worker.cli import main
from tts_worker.errors import BundleError, TTSWorkerError, UnknownVoice
from tts_worker.settings import load_settings
from tts_worker.voices import installed
from tts_worker.voices.installed import installed_voice, installed_voices


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the only place of installed voices."""

    def entry_points(group: str) -> list[EntryPoint]:
        packages = distributions(path=[str(tmp_path)])
        return [point for package in packages for point in package.entry_points if point.group == group]

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installed, "entry_points", entry_points)
    return tmp_path


def install(site: Path, voice: str, *, complete: bool = True) -> Path:
    """Lay out a package as pip would; returns its model directory."""
    info = site / f"{voice}_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {voice}-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tts_worker.voices]\n{voice} = {voice}_package\n")
    folder = site / f"{voice}_package" / "voicepacks" / voice
    if complete:
        folder.mkdir(parents=True)
        (folder.parents[1] / "__init__.py").write_text(
            "raise RuntimeError('finding a voice runs no code of its package')"
        )
    return folder


def test_installed_voices_are_found_by_entry_point(site: Path) -> None:
    assert installed_voices() == {}
    bella, anna = install(site, "bella"), install(site, "anna")
    assert installed_voices() == {"anna": anna, "bella": bella}
    assert installed_voice("bella") == ("bella", bella)


def test_only_installed_voice_is_the_default(site: Path) -> None:
    with pytest.raises(UnknownVoice, match=r"^no voice is installed; try: pip install \./packages/tts-worker-voice"):
        installed_voice(None)
    anna = install(site, "anna")
    assert installed_voice(None) == ("anna", anna)
    install(site, "bella")
    with pytest.raises(UnknownVoice, match="choose a voice; installed: anna, bella"):
        installed_voice(None)


def test_damaged_voice_package_is_reported(site: Path) -> None:
    install(site, "anna", complete=False)
    with pytest.raises(BundleError, match="'anna' has no model directory: install it again"):
        installed_voices()


def test_settings_name_an_installed_voice(site: Path) -> None:
    anna, bella = install(site, "anna"), install(site, "bella")

    def bundle(**engine: str) -> Path:
        settings = load_settings(None, {"engines": {"c": {"kind": "cosyvoice", **engine}}}, replaced=("engines",))
        return settings.engines["c"].bundle  # type: ignore[union-attr]

    assert bundle(bundle="bella") == bella
    assert bundle(bundle=str(anna)) == anna
    with pytest.raises(TTSWorkerError, match="choose a voice"):
        bundle()


def test_settings_file_names_an_installed_voice(site: Path) -> None:
    anna = install(site, "anna")
    file = site / "worker.yaml"
    file.write_text("engines: {c: {kind: cosyvoice, bundle: anna}}")

    def bundle() -> Path:
        return load_settings(file).engines["c"].bundle  # type: ignore[union-attr]

    assert bundle() == anna
    (site / "anna").mkdir()
    assert bundle() == site / "anna", "a directory beside the file goes first"


def test_say_without_a_voice_tells_what_to_install(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "--engine", "cosyvoice", "--voice", "nano", "Hello."]) != 0
    assert "pip install ./packages/tts-worker-voice-nano" in capsys.readouterr().err
