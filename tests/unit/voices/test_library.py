"""Voice packs become stored voices, and the catalog follows the directory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.fakes.recordings import SAID, speech, wav
from tests.unit.voices.test_files import voice
from tts_worker.audio.decode import Recording
from tts_worker.audio.prompt import PromptFigures
from tts_worker.callers import ApiScope, Caller, acting_as
from tts_worker.errors import Forbidden, InvalidRequest, OverCapacity, UnknownVoice
from tts_worker.types import Alignment, EngineInfo
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.details import VoiceDetails
from tts_worker.voices.enrollment import Enrollment
from tts_worker.voices.files import Voice, load_voice
from tts_worker.voices.library import VoiceLibrary
from tts_worker.voices.packs import read_voicepacks
from tts_worker.voices.routing import VoiceRequest, choose_voice
from tts_worker.voices.store import VoiceStore
from tts_worker.voices.upload import MixPart, NewVoice


@dataclass
class Host:
    """Records what the library announces, and how often it asks for an engine."""

    voices_in_use: Collection[str] = ()
    session_voices: Collection[str] = ()
    changes: list[tuple[str, str]] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)

    async def use_engine(self, engine: str) -> None:
        self.wanted.append(engine)

    def voice_changed(self, engine: str, voice: str) -> None:
        self.changes.append((engine, voice))


INFO = EngineInfo("fake", (), ("en", "zh"), Alignment.NONE, max_utterances=4, capabilities=("instruct",))


class CountingEnroller:
    """Makes a voice of any recording but one of less than 3 s."""

    def __init__(self) -> None:
        self.transcripts: list[str] = []

    def enroll(self, name: str, recording: Recording, transcript: str) -> None:
        raise AssertionError

    def forget(self, name: str) -> None:
        raise AssertionError

    def compute(self, recording: Recording, transcript: str) -> tuple[Voice, PromptFigures]:
        if recording.seconds < 3:
            raise InvalidRequest("too short")
        self.transcripts.append(transcript)
        return voice(len(self.transcripts)), PromptFigures(4.0, -20.0, 0.0, 30.0)


def write_pack(root: Path, name: str, styles: dict[str, float]) -> None:
    folder = root / "fake" / name
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    (folder / "metadata.yaml").write_text("tags: [warm]\nlanguage: zh\ncapabilities: [whisper]\nlicense: CC0\n")
    for style, seconds in styles.items():
        (folder / "prompts" / f"{style}.wav").write_bytes(wav(speech(seconds, 16_000)))
        (folder / "prompts" / f"{style}.txt").write_text(SAID)


async def test_packs_are_stored_once_and_updated(tmp_path: Path) -> None:
    enroller = CountingEnroller()
    enrollment = Enrollment(enroller)
    packs = tmp_path / "packs"
    write_pack(packs, "anna", {"neutral": 4, "happy": 4})
    write_pack(packs, "short", {"neutral": 1})

    async def start() -> VoiceCatalog:
        catalog = VoiceCatalog([installed.pack for installed in read_voicepacks(packs)])
        library = VoiceLibrary(catalog, {"one": VoiceStore(tmp_path / "voices")})
        library.add_engine("one", "fake", INFO, enrollment)
        await library.import_packs("one", read_voicepacks(packs))
        return catalog

    catalog = await start()
    assert [each.name for each in catalog] == ["anna"], "a bad pack is skipped"
    anna = catalog.get("anna")
    assert (anna.styles, anna.languages, anna.tags, anna.license) == (("neutral", "happy"), ("zh",), ("warm",), "CC0")
    assert anna.capabilities == ("instruct", "whisper")
    assert catalog.get("anna@happy").stored is not None
    assert enroller.transcripts == [SAID] * 2
    await start()
    assert len(enroller.transcripts) == 2, "stored voices are not computed again"
    write_pack(packs, "anna", {"happy": 5})
    await start()
    assert len(enroller.transcripts) == 3, "only the changed recording is computed"
    enrollment.close()


async def test_unwritable_directory_is_reported_without_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "voices"
    folder.write_text("a file")
    enrollment = Enrollment(CountingEnroller())
    library = VoiceLibrary(VoiceCatalog(), {"one": VoiceStore(folder)})
    library.add_engine("one", "fake", INFO, enrollment)
    with pytest.raises(OverCapacity) as refused:
        await library.add(NewVoice(name="ann", consent=True), wav(speech(4, 16_000)))
    assert str(tmp_path) not in refused.value.message
    enrollment.close()


def test_engine_with_the_same_voice_hides_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = VoiceStore(tmp_path)
    catalog = VoiceCatalog()
    catalog.add("one", "fake", EngineInfo("fake", ("ann",), ("en",), Alignment.NONE, max_utterances=1))
    catalog.add("two", "other", INFO)
    store_voice(store, "ann")
    store_voice(store, "bob")
    catalog.set_stored("two", store.scan())
    assert [each.name for each in catalog] == ["ann", "bob"]
    assert catalog.get("ann").engine == "one"
    assert "hidden" in caplog.text
    store.delete("bob")
    catalog.set_stored("two", store.scan())
    with pytest.raises(UnknownVoice):
        catalog.get("bob")
    assert catalog.get_in_use("bob").engine == "two"


async def test_deleted_voice_remains_while_another_worker_needs_it(tmp_path: Path) -> None:
    now_s = 0.0
    used_by_other: set[str] = set()
    stores = [VoiceStore(tmp_path, lambda: now_s, unused_s=5.0) for _ in range(2)]
    own, other = (VoiceLibrary(VoiceCatalog(), {"one": store}) for store in stores)
    other.connect(Host(voices_in_use=used_by_other))
    store = stores[0]
    store_voice(store, "ann")
    for library in (own, other):
        await library.refresh()
    used_by_other.add("ann")
    store.delete("ann")
    for _ in range(20):
        now_s += 1.0
        for library in (own, other):
            await library.refresh()
    await own.close()
    assert load_voice(tmp_path, "ann", deleted=True).family
    used_by_other.clear()
    now_s += 5.0
    await own.refresh()
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240


def store_voice(store: VoiceStore, name: str) -> None:
    store.save(name, voice(), VoiceDetails())


def caller(key: str | None, *scopes: ApiScope) -> Caller:
    return Caller(key=key, scopes=frozenset(scopes or (ApiScope.SPEAK, ApiScope.ENROLL)))


def library_with(folder: Path, **owners: str | None) -> VoiceLibrary:
    """A library with voices of these owners."""
    store = VoiceStore(folder)
    for number, (name, owner) in enumerate(owners.items()):
        store.save(name, voice(number), VoiceDetails(owner=owner, consent=True))
    library = VoiceLibrary(VoiceCatalog(), {"one": store})
    library.add_engine("one", "fake", INFO)
    return library


def mix_of(name: str, *parts: str, prompt: str | None = None) -> NewVoice:
    return NewVoice.parse({"name": name, "mix": [{"voice": part} for part in parts], "prompt": prompt})


async def test_voice_of_another_key_cannot_be_mixed(tmp_path: Path) -> None:
    library = library_with(tmp_path, victim="alice", own="mallory", shared=None)
    with acting_as(caller("mallory")):
        for new in (
            mix_of("copy", "victim", "own"),
            mix_of("copy", "own", "shared", prompt="victim"),
        ):
            with pytest.raises(Forbidden):
                await library.mix(new)
        assert (await library.mix(mix_of("fine", "own", "shared", prompt="own"))).stored is not None
    with acting_as(caller("operator", *ApiScope)):
        assert (await library.mix(mix_of("by-admin", "victim", "own"))).stored is not None


async def test_deleted_voice_takes_its_mixes_with_it(tmp_path: Path) -> None:
    library = library_with(tmp_path, a="alice", b="alice", c="alice", d="alice")
    with acting_as(caller("alice")):
        await library.mix(mix_of("ab", "a", "b"))
        await library.mix(mix_of("abc", "ab", "c"))
        await library.mix(mix_of("cd", "c", "d"))
        await library.mix(mix_of("cda", "c", "d", prompt="a"))
        assert await library.delete("a") == ("ab", "abc", "cda")
        left = set(VoiceStore(tmp_path).scan())
    assert left == {"b", "c", "d", "cd"}


async def test_change_is_announced_once_after_the_catalog_has_it(tmp_path: Path) -> None:
    host, store = Host(), VoiceStore(tmp_path)
    library = VoiceLibrary(VoiceCatalog(), {"one": VoiceStore(tmp_path)})
    library.add_engine("one", "fake", INFO)
    library.connect(host)
    for change in (lambda: store_voice(store, "ann"), lambda: store.delete("ann")):
        change()
        for _ in range(3):
            await library.refresh()
        assert host.changes == [("one", "ann")]
        host.changes.clear()
    assert not library.catalog.is_taken("ann")


async def test_added_voice_is_listed_and_announced(tmp_path: Path) -> None:
    host, enrollment = Host(), Enrollment(CountingEnroller())
    library = VoiceLibrary(VoiceCatalog(), {"one": VoiceStore(tmp_path)})
    library.add_engine("one", "fake", INFO, enrollment)
    library.connect(host)
    added = await library.add(NewVoice(name="ann", consent=True), wav(speech(4, 16_000)))
    assert (added.name, [each.name for each in library.catalog]) == ("ann", ["ann"])
    assert (host.changes, host.wanted) == ([("one", "ann")], ["one"])
    enrollment.close()


async def test_voices_stored_before_their_engine_is_known_are_listed(tmp_path: Path) -> None:
    store_voice(VoiceStore(tmp_path), "ann")
    library = VoiceLibrary(VoiceCatalog(), {"one": VoiceStore(tmp_path)})
    await library.refresh()
    library.add_engine("one", "fake", INFO)
    assert [each.name for each in library.catalog] == ["ann"]


@pytest.mark.parametrize("action", ["add", "mix", "delete"])
async def test_worker_without_stores_says_what_it_needs(action: str) -> None:
    library = VoiceLibrary(VoiceCatalog())
    library.add_engine("one", "fake", EngineInfo("fake", ("ann",), ("en",), Alignment.NONE, max_utterances=1))
    new = NewVoice(name="cleo", consent=True, mix=(MixPart(voice="ann"), MixPart(voice="bob")))
    actions = {
        "add": lambda: library.add(new, wav(speech(4, 16_000))),
        "mix": lambda: library.mix(new),
        "delete": lambda: library.delete("ann"),
    }
    with pytest.raises(InvalidRequest, match="needs a CosyVoice model"):
        await actions[action]()


def test_speaker_without_prompt_audio_does_not_follow_instructions() -> None:
    info = replace(INFO, voices=("prompted", "speaker"), uninstructed=("speaker",))
    catalog = VoiceCatalog()
    VoiceLibrary(catalog, {}).add_engine("one", "fake", info, None)
    assert {voice.name: voice.capabilities for voice in catalog} == {"prompted": ("instruct",), "speaker": ()}
    assert choose_voice(catalog, VoiceRequest(needs=("instruct",))).name == "prompted"
    with pytest.raises(InvalidRequest, match="lacks the capabilities instruct"):
        choose_voice(catalog, VoiceRequest(voice="speaker", needs=("instruct",)))
