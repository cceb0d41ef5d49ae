"""The voice catalog and voice packs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_worker.errors import ConfigError, UnknownVoice
from tts_worker.types import Alignment, EngineInfo
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.named_mixes import is_mix, mix_of, name_of
from tts_worker.voices.packs import VoicePack, read_voicepacks
from tts_worker.voices.routing import VoiceRequest, choose_voice

REPOSITORY = Path(__file__).parents[3]


def info(*voices: str) -> EngineInfo:
    return EngineInfo("fake", voices, ("en",), Alignment.NONE, max_utterances=4)


def pack(directory: Path, text: str, family: str = "fake", name: str = "ann") -> Path:
    file = directory / family / name / "metadata.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text, "utf-8")
    return directory


def test_unknown_voice_name_is_an_error() -> None:
    catalog = VoiceCatalog(aliases={"alloy": "ann"})
    with pytest.raises(UnknownVoice, match="no engine"):
        catalog.get(None)
    catalog.add("one", "fake", info("ann", "bob"))
    catalog.check()
    assert catalog.get(None).name == "ann"
    assert catalog.get("alloy").name == "ann"
    with pytest.raises(UnknownVoice, match='did you mean "bob"'):
        catalog.get("bobb")
    with pytest.raises(UnknownVoice, match='"zm_yunjian" replaces it: pip install'):
        catalog.get("kumo")
    with pytest.raises(UnknownVoice, match=r"available: ann, bob$"):
        catalog.get("x" * 10_000)
    catalog.add("two", "fake", info(*(f"v{number}" for number in range(100, 1_000))))
    with pytest.raises(UnknownVoice, match=r"v140, v141, .* \.\.\.$") as raised:
        catalog.get("x" * 10_000)
    assert len(raised.value.message) < 700


def test_mix_by_name_is_a_voice() -> None:
    catalog = VoiceCatalog(aliases={"nova": "bob"})
    catalog.add(
        "one", "fake", replace(info("ann", "bob", "cleo", "fay", "gus"), mixable=(("ann", "bob"), ("fay", "gus")))
    )
    catalog.add("two", "fake", info("dan"))
    assert catalog.get("nova(3)+ann").name == catalog.get("bob(0.3)+ann(0.1)").name == "bob(75)+ann(25)"
    assert catalog.get(catalog.get("ann+bob").name) == catalog.get("ann(7)+bob(7)")
    assert catalog.get("nova+bob+ann(2)").name == "bob(50)+ann(50)"
    assert catalog.get("fay+gus").name == "fay(50)+gus(50)"
    assert [voice.name for voice in catalog] == ["ann", "bob", "cleo", "fay", "gus", "dan"]
    for name in (
        "ann+cleo",
        "ann+dan",
        "ann+fay",
        "ann+eve",
        "ann+",
        "+ann",
        "ann(0)+bob(0)",
        "ann(-1)+bob",
        "ann+bob" * 9,
        "nova+bob",
    ):
        with pytest.raises(UnknownVoice, match=r"no mix .*; voices that can be mixed: ann, bob; fay, gus|unknown"):
            catalog.get(name)


def test_loudness_of_a_mix_needs_that_of_all_its_voices() -> None:
    packs = [
        VoicePack(name="ann", family="fake", loudness_lufs=-20),
        VoicePack(name="bob", family="fake", loudness_lufs=-30),
    ]
    catalog = VoiceCatalog(packs)
    catalog.add("one", "fake", replace(info("ann", "bob", "cleo"), mixable=(("ann", "bob", "cleo"),)))
    assert catalog.get("ann(3)+bob").loudness_lufs == pytest.approx(-22.5)
    assert catalog.get("ann+cleo").loudness_lufs is None, "it is measured"


@pytest.mark.parametrize("language", ["en", "en-GB", "en_GB", "EN"])
def test_language_of_a_request_matches_any_form_of_its_tag(language: str) -> None:
    catalog = VoiceCatalog([VoicePack(name="ann", family="fake", languages=("en_US",))])
    catalog.add("one", "fake", info("ann"))
    assert choose_voice(catalog, VoiceRequest(language=language)).name == "ann"


@given(st.lists(st.tuples(st.sampled_from(["ann", "bob", "x.y-z"]), st.floats(0.001, 999)), min_size=1, max_size=8))
def test_shares_of_a_mix_add_up_to_one(parts: list[tuple[str, float]]) -> None:
    mix = mix_of("+".join(f"{name}({weight:.3f})" for name, weight in parts))
    assert (mix is not None) == (len({name for name, _ in parts}) > 1)
    if mix is not None:
        assert sum(share for _, share in mix) == pytest.approx(1)
        assert is_mix(name_of(mix), [{"ann", "bob", "x.y-z"}])


def test_duplicate_voice_of_two_engines_is_rejected() -> None:
    catalog = VoiceCatalog()
    catalog.add("one", "fake", info("ann"))
    with pytest.raises(ConfigError, match=r"engines\.two: engine one already has a voice named ann"):
        catalog.add("two", "fake", info("bob", "ann"))
    assert [voice.name for voice in catalog] == ["ann"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"default": "missing"}, r"voices\.default"),
        ({"aliases": {"alloy": "missing"}}, r"voices\.aliases\.alloy: unknown voice"),
        ({"aliases": {"ann": "ann"}}, r"voices\.aliases\.ann: a voice already has that name"),
    ],
)
def test_settings_with_unknown_voices_are_rejected(options: dict[str, object], message: str) -> None:
    catalog = VoiceCatalog(**options)  # type: ignore[arg-type]
    catalog.add("one", "fake", info("ann"))
    with pytest.raises(ConfigError, match=message):
        catalog.check()


def test_voice_pack_describes_its_voice(tmp_path: Path) -> None:
    pack(tmp_path, "name: ann\nfamily: fake\ndescription: kind\nlanguages: [de]\nlexicon: {SQL: sequel}\n")
    catalog = VoiceCatalog(installed.pack for installed in read_voicepacks(tmp_path))
    catalog.add("one", "fake", info("ann"))
    voice = catalog.get("ann")
    assert (voice.description, voice.languages, len(voice.lexicon)) == ("kind", ("de",), 1)


def test_names_in_any_script(tmp_path: Path) -> None:
    packs = read_voicepacks(pack(tmp_path, "name: 小雨\nfamily: fake\n", name="小雨"))
    assert [found.pack.name for found in packs] == ["小雨"]


def test_voice_packs_of_the_repository_are_valid() -> None:
    assert {found.pack.name for found in read_voicepacks(REPOSITORY / "voicepacks")} >= {"heart", "tone"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: ann\nfamily: fake\nfoo: 1", "foo"),
        ("name: bob\nfamily: fake", "must match the folder names"),
        ("name: ../ann\nfamily: fake", "name"),
        ("name: .ann\nfamily: fake", "name"),
        ("name: ann\nfamily: fake\nlexicon: {a: 3}", "lexicon"),
        ("name: [", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("name: ann\nfamily: fake\ntags: [2024-13-45]", "not valid YAML"),
        ("", "metadata.yaml"),
        ("[" * 100_000, "not valid YAML"),
        ("{a: " * 5_000, "not valid YAML"),
        ("#" + "x" * (2 << 20), "larger than"),
    ],
)
def test_invalid_voice_pack_is_rejected_by_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_voicepacks(pack(tmp_path, text))
    assert "metadata.yaml" in refused.value.message
    assert message in refused.value.message


def test_voice_pack_is_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        VoicePack(name="ann", family="fake").name = "bob"  # type: ignore[misc]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize("kind", ["device", "fifo", "folder"])
def test_metadata_must_be_a_regular_file(tmp_path: Path, kind: str) -> None:
    file = pack(tmp_path, "") / "fake" / "ann" / "metadata.yaml"
    file.unlink()
    match kind:
        case "device":
            file.symlink_to("/dev/zero")
        case "fifo":
            os.mkfifo(file)
        case _:
            file.mkdir()
    with pytest.raises(ConfigError, match=r"not a regular file|cannot be read"):
        read_voicepacks(tmp_path)
