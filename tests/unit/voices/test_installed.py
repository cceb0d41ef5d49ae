"""Voices that are installed as packages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import cast

import pytest

from tests.unit.engine.shared_voices import voice_like_heart
from tts_worker.cli import main
from tts_worker.engine.factory import info_before_loading
from tts_worker.errors import BundleError, EngineFault, TTSWorkerError, UnknownVoice
from tts_worker.session.session import LocalSession
from tts_worker.settings import HibariEngineSettings, Settings, load_settings
from tts_worker.types import Ended, Outcome, PcmFrame, SessionOptions, Started
from tts_worker.voices import installed
from tts_worker.voices.installed import (
    CPU_GROUP,
    CPU_NETWORK,
    CPU_VECTOR,
    GROUP,
    cpu_voices,
    installed_voice,
    installed_voices,
)
from tts_worker.worker import Worker


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the only place of installed voices."""

    def entry_points(group: str) -> list[EntryPoint]:
        packages = distributions(path=[str(tmp_path)])
        return [point for package in packages for point in package.entry_points if point.group == group]

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installed, "entry_points", entry_points)
    return tmp_path


def install(
    site: Path, voice: str, *, complete: bool = True, group: str = "tts_worker.voices", within: str = "voicepacks"
) -> Path:
    """Lay out a package as pip would; returns its model directory or voice pack."""
    info = site / f"{voice}_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {voice}-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{voice} = {voice}_package\n")
    package = site / f"{voice}_package"
    folder = package / within / voice
    if complete:
        folder.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('finding a voice runs no code of its package')")
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


@pytest.mark.parametrize("group", [GROUP, CPU_GROUP])
def test_voice_of_two_packages_is_refused(site: Path, group: str) -> None:
    for package in ("one", "two"):
        folder = install(site, package, group=group)
        folder.rename(folder.with_name("anna"))
        (site / f"{package}_package-1.0.dist-info" / "entry_points.txt").write_text(
            f"[{group}]\nanna = {package}_package\n"
        )
    with pytest.raises(BundleError, match="one_package and two_package both have a voice 'anna'"):
        installed_voices() if group == GROUP else cpu_voices()


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


def install_cpu_voice(site: Path, voice: str) -> Path:
    return install(site, voice, group=CPU_GROUP, within="voicepacks/hibari")


def test_voices_of_the_cpu_engine_are_found_apart(site: Path) -> None:
    bella, anna = install_cpu_voice(site, "bella"), install(site, "anna")
    assert cpu_voices() == {"bella": bella}
    assert installed_voices() == {"anna": anna}


def test_cpu_engine_has_the_chosen_voices(site: Path) -> None:
    bella, anna = install_cpu_voice(site, "bella"), install_cpu_voice(site, "anna")

    def engine(**values: object) -> HibariEngineSettings:
        settings = load_settings(None, {"engines": {"c": {"kind": "hibari", **values}}}, replaced=("engines",))
        return cast(HibariEngineSettings, settings.engines["c"])

    for pack in (anna, bella):
        (pack / "metadata.yaml").write_text("languages: [en]\n", "utf-8")
    assert engine().installed_packs() == {"anna": anna, "bella": bella}
    assert engine(voices=["bella"]).installed_packs() == {"bella": bella}
    assert engine(voices=[]).installed_packs() == {}
    assert info_before_loading("c", engine()).voices == ("heart", "anna", "bella")
    with pytest.raises(TTSWorkerError, match="no voice 'carla' is installed; installed: anna, bella"):
        engine(voices=["carla"])


async def test_worker_speaks_with_an_installed_voice(site: Path) -> None:
    """Its weights are those of ``heart``, under another name."""
    pack = install_cpu_voice(site, "hannah_p")
    sha256 = voice_like_heart(pack).sha256
    (pack / "metadata.yaml").write_text(
        f"aliases: [hannah]\ngender: female\nlanguages: [en]\nloudness_lufs: -25.9\nmodel_sha256: {sha256}\n", "utf-8"
    )
    worker = Worker(Settings())
    await worker.start()
    try:
        voices = worker.hub.voices
        assert [voice.name for voice in voices] == ["heart", "hannah_p"]
        assert voices.default == "heart"
        assert voices.get("hannah") == voices.get("hannah_p")
        assert voices.get("hannah").loudness_lufs == -25.9
        about = voices.get("hannah").for_clients("heart")
        assert (about.gender, about.aliases, about.is_default) == ("female", ("hannah",), False)
        assert voices.is_taken("hannah")
    finally:
        await worker.stop()


async def test_voices_speak_in_the_accent_of_their_language(site: Path) -> None:
    """All have the weights of ``heart``, so what differs is their phonemes."""
    for name, languages in (("anna", "[en-GB, en]"), ("bella", "[en]"), ("carla", "[]")):
        pack = install_cpu_voice(site, name)
        sha256 = voice_like_heart(pack).sha256
        (pack / "metadata.yaml").write_text(
            f"languages: {languages}\nloudness_lufs: -25\nmodel_sha256: {sha256}\n", "utf-8"
        )
    worker = Worker(Settings())
    await worker.start()
    try:
        anna, bella, carla = [await audio_of(worker, name) for name in ("anna", "bella", "carla")]
        assert anna != bella == carla
        assert worker.hub.voices.get("anna").languages == ("en-GB", "en")
    finally:
        await worker.stop()


async def test_mandarin_goes_to_the_voices_that_speak_it(site: Path) -> None:
    """By the language of the request or of its first letters; within an utterance without a change of its voice."""
    for name, gender in (("anna_zh", "female"), ("ben_zh", "male")):
        pack = install_cpu_voice(site, name)
        sha256 = voice_like_heart(pack, language="zh").sha256
        metadata = f"languages: [zh, en]\ngender: {gender}\nloudness_lufs: -25\nmodel_sha256: {sha256}\n"
        (pack / "metadata.yaml").write_text(metadata, "utf-8")
    assert info_before_loading("hibari", HibariEngineSettings()).languages == ("en", "zh")
    worker = Worker(Settings())
    await worker.start()
    try:
        assert worker.hub.voices.default == "heart"
        for options, text, voice in (
            (SessionOptions(), "您好，请问有什么可以帮您？", "anna_zh"),
            (SessionOptions(), "“3 个苹果。”", "anna_zh"),
            (SessionOptions(language="zh"), "OK, 好。", "anna_zh"),
            (SessionOptions(), "She wrote 你好, dear world.", "heart"),
            (SessionOptions(language="en"), "你好, world.", "heart"),
            (SessionOptions(voice="heart"), "我有5个 apples.", "heart"),
            (SessionOptions(voice="ben_zh"), "Hello, world.", "ben_zh"),
        ):
            started, ended = await spoken_by(worker, options, text)
            assert (started.params.voice, ended.receipt.text_spoken) == (voice, text)
            assert ended.receipt.skipped == ()
            words = "".join(word.text for word in ended.receipt.words)
            assert words.strip("“”") == text.replace(" ", "").strip("“”")
    finally:
        await worker.stop()


async def spoken_by(worker: Worker, options: SessionOptions, text: str) -> tuple[Started, Ended]:
    """Speak a text as fast as possible; it must end with audio."""
    session = await worker.hub.admit(replace(options, realtime=False))
    session.speak(text)
    session.end_text()
    events = [item async for item in session_until_end(session)]
    session.close()
    (started,) = (item for item in events if isinstance(item, Started))
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.receipt.samples_sent > 0) == (Outcome.DONE, True)
    return started, ended


async def session_until_end(session: LocalSession) -> AsyncIterator[object]:
    async for item in session:
        yield item
        if isinstance(item, Ended):
            return


async def audio_of(worker: Worker, voice: str) -> bytes:
    session = await worker.hub.admit(SessionOptions(voice=voice, realtime=False))
    session.speak("A hot bath.")
    session.end_text()
    pcm = b""
    async for item in session:
        if isinstance(item, PcmFrame):
            pcm += item.pcm
        elif isinstance(item, Ended):
            assert item.outcome is Outcome.DONE
            break
    session.close()
    return pcm


async def test_damaged_voice_that_is_not_used_is_no_error(site: Path) -> None:
    install_cpu_voice(site, "anna").parents[2].rename(site / "lost")
    with pytest.raises(BundleError, match="'anna' has no model directory"):
        Worker(Settings())
    for engine in ({"kind": "hibari", "voices": []}, {"kind": "tone"}):
        Worker(load_settings(None, {"engines": {"c": engine}}, replaced=("engines",)))


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ("", "metadata.yaml: model_sha256 is missing"),
        (f"model_sha256: {'a' * 64}\n", "the model of the voice anna does not match its expected hash"),
        (f"model_sha256: {sha256(b'no model').hexdigest()}\n", "voice.npy of the voice anna is damaged"),
    ],
    ids=["no hash", "other hash", "no model"],
)
async def test_voice_with_a_wrong_model_is_named(site: Path, metadata: str, problem: str) -> None:
    pack = install_cpu_voice(site, "anna")
    (pack.parent / CPU_NETWORK).write_bytes(b"no ")
    (pack / CPU_VECTOR).write_bytes(b"model")
    (pack / "metadata.yaml").write_text(f"languages: [en]\n{metadata}", "utf-8")
    with pytest.raises(TTSWorkerError, match=problem):
        await Worker(Settings()).start()


async def test_no_package_replaces_the_built_in_voice(site: Path) -> None:
    pack = install_cpu_voice(site, "heart")
    (pack / "metadata.yaml").write_text(f"languages: [en]\nmodel_sha256: {'a' * 64}\n", "utf-8")
    with pytest.raises(EngineFault, match="an installed package has another voice heart; uninstall it"):
        await Worker(Settings()).start()
