"""The voices of a fleet whose workers have different ones."""

from __future__ import annotations

import pytest

from tts_worker.client.fleet import FleetVoices
from tts_worker.errors import ConnectionLost, UnknownVoice
from tts_worker.protocol.voices import VoiceInfo, VoiceUpload


class FakeVoices:
    """A worker with these voices; None: it cannot be reached."""

    def __init__(self, *ids: str | None) -> None:
        self.is_lost = None in ids
        self.voices = {voice: VoiceInfo(voice) for voice in ids if voice is not None}

    async def list(self) -> list[VoiceInfo]:
        if self.is_lost:
            raise ConnectionLost("lost")
        return [*self.voices.values()]

    async def get(self, voice: str) -> VoiceInfo:
        if voice not in self.voices:
            raise UnknownVoice(voice)
        return self.voices[voice]

    async def add(self, upload: VoiceUpload, audio: bytes | None) -> VoiceInfo:
        return self.voices.setdefault(upload.name, VoiceInfo(upload.name))

    async def delete(self, voice: str) -> None:
        await self.get(voice)
        del self.voices[voice]


async def test_list_joins_the_voices_of_all_reachable_workers() -> None:
    fleet = FleetVoices([FakeVoices("anna", "ben"), FakeVoices(None), FakeVoices("ben", "carl")])
    assert {voice.id for voice in await fleet.list()} == {"anna", "ben", "carl"}
    assert len(await fleet.list()) == 3


async def test_list_fails_if_no_worker_can_be_reached() -> None:
    with pytest.raises(ConnectionLost):
        await FleetVoices([FakeVoices(None), FakeVoices(None)]).list()


async def test_voice_is_found_and_deleted_on_its_worker() -> None:
    first, second = FakeVoices("anna"), FakeVoices("ben")
    fleet = FleetVoices([first, second])
    assert (await fleet.get("ben")).id == "ben"
    await fleet.delete("ben")
    assert (set(first.voices), set(second.voices)) == ({"anna"}, set())
    for request in (fleet.get("ben"), fleet.delete("ben")):
        with pytest.raises(UnknownVoice):
            await request
