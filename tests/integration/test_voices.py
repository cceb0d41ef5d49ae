"""Voices as resources of a running worker: a tiny CosyVoice model that starts without any voice."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from websockets.sync.client import connect as websocket

from tests.conftest import until
from tests.fakes.late import LateModule
from tests.fakes.recordings import SAID, speech, wav
from tests.fakes.threaded_worker import ThreadedWorker, worker_in_thread
from tests.unit.cosyvoice.bundles import copy_of
from tts_worker.audio.decode import Recording, read_recording
from tts_worker.client import Client, ClientSettings, connect
from tts_worker.errors import (
    ConnectionLost,
    Forbidden,
    IllegalCommand,
    InvalidRequest,
    MissingExtra,
    TTSWorkerError,
    Unauthenticated,
    UnknownVoice,
)
from tts_worker.settings import load_settings
from tts_worker.types import Ended, Outcome, PcmFrame, SessionOptions, Started, SynthesisParams
from tts_worker.voices.files import load_voice, save_voice

elevenlabs_client = LateModule("elevenlabs.client", "needs the package elevenlabs")
elevenlabs_core = LateModule("elevenlabs.core")
webrtc_client = LateModule("tests.features.webrtc.webrtc_client", 'needs the extra "webrtc"')
cartesia_sdk = LateModule("cartesia", "needs the package cartesia")
openai = LateModule("openai", "needs the package openai")

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.timeout(300)

KEYS = {
    "keys": [
        {"name": "studio", "key": "studio-key-0123456789", "scopes": ["speak", "enroll"]},
        {"name": "small", "key": "small-key-0123456789", "scopes": ["enroll"], "max_voices": 1},
        {"name": "tight", "key": "tight-key-0123456789", "scopes": ["enroll"], "max_recording_bytes": 1000},
        {"name": "reader", "key": "reader-key-0123456789", "scopes": ["speak"]},
    ]
}
GOOD = wav(speech(4, 16_000))


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-key-0123456789"}


@dataclass
class Served:
    """A worker in a thread, so that all tests of the module share it."""

    address: str
    grpc_address: str
    voices: Path
    http: httpx.Client

    def add(self, voice: str, audio: bytes = GOOD, *, as_key: str = "studio", **fields: str) -> httpx.Response:
        data = {"name": voice, "consent": "true", **fields}
        return self.http.post("/v1/voices", data=data, files={"audio": ("a.wav", audio)}, headers=key(as_key))

    def names(self) -> list[str]:
        return [voice["id"] for voice in self.http.get("/v1/voices").json()["voices"]]

    def speak(self, voice: str) -> httpx.Response:
        return self.http.post("/v1/audio/speech", json={"input": "Hi.", "voice": voice, "response_format": "pcm"})


@pytest.fixture(scope="module", autouse=True)
def few_layers() -> Iterator[None]:
    from tests.unit.cosyvoice.networks import little_work

    with little_work():
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("voices")
    bundle = copy_of("cosyvoice2", root)
    (bundle / "spk2info.pt").unlink()
    (root / "keys.yaml").write_text(json.dumps(KEYS))
    engine = {"kind": "cosyvoice", "bundle": str(bundle), "device": "cpu", "threads": 1, "memory_gb": 0.1}
    settings = load_settings(
        flags={
            "engines": {"cosy": {**engine, "max_utterances": 4}},
            "server": {"key_file": str(root / "keys.yaml")},
            "session": {"loudness": None},  # measuring it would speak a sentence in every voice
        }
    )
    with (
        worker_in_thread(settings) as worker,
        httpx.Client(base_url=f"http://{worker.address}", headers=key("studio"), timeout=60) as client,
    ):
        yield Served(worker.address, worker.grpc_address, bundle / "voices", client)


@pytest.fixture(autouse=True)
def no_voice_is_left(served: Served) -> Iterator[None]:
    """Keep a failing test from failing the others."""
    yield
    for folder in served.voices.glob("*"):
        shutil.rmtree(folder, ignore_errors=True)  # the worker removes deleted voices meanwhile


def message(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


def test_voice_is_added_spoken_and_deleted(served: Served) -> None:
    assert served.names() == []
    assert served.speak("anna").status_code == 404

    added = served.add("anna", transcript=SAID, tags="warm, calm", languages="en")

    assert added.status_code == 201
    assert added.headers["location"] == "/v1/voices/anna"
    described = served.http.get("/v1/voices/anna").json()
    assert described == added.json()
    assert (described["tags"], described["languages"]) == (["warm", "calm"], ["en"])
    assert described["stored"]["owner"] == "studio"
    assert described["stored"]["figures"]["seconds"] == pytest.approx(4.0, abs=0.1)
    assert len(served.speak("anna").content) > 1_000
    assert served.add("anna").status_code == 409
    assert served.http.delete("/v1/voices/anna").json() == {"id": "anna", "deleted": True, "status": "ok"}
    assert served.names() == []
    assert served.speak("anna").status_code == 404
    limit_s = time.monotonic() + 60
    while list(served.voices.iterdir()):  # until no worker with this folder can need it
        assert time.monotonic() < limit_s, "the files of a deleted voice remain"
        served.names()


def noise() -> Recording:
    return Recording(np.random.default_rng(0).normal(0, 0.05, 4 * 16_000).astype(np.float32), 16_000)


@pytest.mark.parametrize(
    ("audio", "fields", "status", "complaint"),
    [
        (wav(speech(1, 16_000)), {}, 400, r"1.0 s of speech; use 3 to 30 s"),
        (wav(speech(31, 16_000)), {}, 400, "longer than 30 s"),
        (wav(speech(4, 16_000, level=1e-5)), {}, 400, "dBFS"),
        (wav(Recording(np.clip(20 * speech(4, 16_000).samples, -1, 1), 16_000)), {}, 400, "% of the samples"),
        (wav(noise()), {}, 400, "dB above the background"),
        (GOOD, {"transcript": "x" * 400}, 400, "100.0 characters per second"),
        (GOOD, {"consent": "false"}, 400, "consent"),
        (GOOD, {"consent": "perhaps"}, 400, "consent"),
        (GOOD, {"name": "../x"}, 400, "name"),
        (GOOD, {"name": "a@b"}, 400, "no @"),
        (GOOD, {"style": "happy"}, 404, "unknown voice"),
        (GOOD, {"languages": "english please"}, 400, "languages.0"),
        (GOOD, {"engine": "tone"}, 400, "stores no voices"),
        (GOOD, {"unknown": "x"}, 400, "unknown"),
        (GOOD, {"mix": "a,b"}, 400, "mix"),
        (b"not audio", {}, 400, "cannot be read"),
        (b"", {}, 400, "empty"),
    ],
)
def test_bad_voice_is_refused(
    served: Served, audio: bytes, fields: dict[str, str], status: int, complaint: str
) -> None:
    response = served.add("bad", audio, **fields)

    assert (response.status_code, complaint in message(response)) == (status, True), response.text
    assert served.names() == []


def test_quotas_of_a_key_bound_its_voices(served: Served) -> None:
    assert served.add("one", as_key="reader").status_code == 403
    assert served.add("one", as_key="tight").status_code == 413
    assert served.add("one", as_key="small").status_code == 201
    full = served.add("two", as_key="small")
    assert (full.status_code, "all of its 1 voices" in message(full)) == (429, True)
    assert full.json()["error"]["retryable"] is False
    assert served.http.delete("/v1/voices/one", headers=key("reader")).status_code == 403
    other = served.http.delete("/v1/voices/one")
    assert (other.status_code, "did not add" in message(other)) == (403, True)
    assert served.http.delete("/v1/voices/one", headers=key("small")).status_code == 200
    assert served.http.delete("/v1/voices/one").status_code == 404


def test_another_process_adds_replaces_and_deletes(served: Served) -> None:
    served.add("first", transcript=SAID)
    voice = load_voice(served.voices, "first")
    mute = load_voice(served.voices, "first")
    save_voice(served.voices, "second", voice)
    assert served.names() == ["first", "second"]
    before = served.speak("second").content
    other = type(mute)(**{**mute.__dict__, "embedding": -mute.embedding, "mel": mute.mel[::-1].copy()})
    save_voice(served.voices, "second", other, replace=True)
    assert served.speak("second").content != before, "the engine must not use the voice of the same name it has cached"
    assert served.speak("first").content == before
    for name in ("first", "second"):
        shutil.rmtree(served.voices / name)
    assert served.names() == []


@pytest.fixture
def other(served: Served, tmp_path: Path) -> Iterator[ThreadedWorker]:
    """Another worker with the same directory of voices, which it reads again when a request names an unknown one."""
    engine = {"kind": "cosyvoice", "bundle": str(copy_of("cosyvoice2", tmp_path)), "voices": str(served.voices)}
    settings = load_settings(
        flags={
            "engines": {"cosy": {**engine, "device": "cpu", "threads": 1, "memory_gb": 0.1}},
            "session": {"loudness": None},
        }
    )
    with worker_in_thread(settings) as worker:
        yield worker


def test_open_connection_knows_a_voice_that_another_worker_added(served: Served, other: ThreadedWorker) -> None:
    with websocket(f"ws://{other.address}/v1/stream") as connection:
        assert json.loads(connection.recv())["type"] == "ready"
        assert served.add("new", transcript=SAID).status_code == 201
        connection.send(json.dumps({"type": "start", "voice": "new"}))
        assert json.loads(connection.recv())["voice"] == "new"
        connection.send(json.dumps({"type": "start", "voice": "unknown"}))
        assert json.loads(connection.recv())["code"] == "unknown_voice"


async def test_open_grpc_call_knows_a_voice_that_another_worker_added(served: Served, other: ThreadedWorker) -> None:
    async with connect(f"grpc://{other.grpc_address}") as client, client.session(SessionOptions()) as session:
        assert (await asyncio.to_thread(served.add, "new", transcript=SAID)).status_code == 201
        session.configure(SynthesisParams(voice="new"))
        session.speak("Hi.")
        started = await anext(item async for item in session if isinstance(item, (Started, Ended)))
        assert isinstance(started, Started)
        assert started.params.voice == "new"


async def test_open_webrtc_peer_knows_a_voice_that_another_worker_added(served: Served, other: ThreadedWorker) -> None:
    async with webrtc_client.connected_client(other.address) as client:
        assert (await asyncio.to_thread(served.add, "new", transcript=SAID)).status_code == 201
        client.send(type="start", voice="new")
        client.send(type="text", text="Hi.", end=True)
        assert (await client.until_message("ready", 2))["voice"] == "new"
        assert (await client.until_message("started"))["voice"] == "new"
        client.send(type="stop")
        await client.until_message("stopped")
        client.send(type="start", voice="unknown")
        assert (await client.until_message("rejected"))["code"] == "unknown_voice"


@pytest.mark.parametrize("transport", ["websocket", "grpc", "webrtc"])
async def test_voices_that_cannot_be_read_cost_no_call(
    other: ThreadedWorker, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(engine: str | None = None) -> None:
        raise PermissionError(13, "no directory for this test")

    monkeypatch.setattr(other.worker.hub.library, "refresh", fail)
    if transport == "webrtc":
        async with webrtc_client.connected_client(other.address) as peer:
            peer.send(type="start", voice="unread")
            assert (await peer.until_message("rejected"))["code"] == "unknown_voice"
            peer.send(type="ping", id=7)
            assert (await peer.until_message("pong"))["id"] == 7
        return
    url = f"ws://{other.address}" if transport == "websocket" else f"grpc://{other.grpc_address}"
    async with connect(url) as client, client.session(SessionOptions()) as session:
        session.configure(SynthesisParams(voice="unread"))
        session.speak("Hi.")
        session.end_text()
        ended = await anext(item async for item in session if isinstance(item, Ended))
        assert ended.error is not None
        assert ended.error.code.value == "unknown_voice"


def test_style_is_selected_by_name(served: Served) -> None:
    served.add("eve", transcript=SAID)
    assert served.add("eve", wav(speech(5, 16_000)), style="happy").json()["id"] == "eve@happy"
    assert served.names() == ["eve"]
    assert served.http.get("/v1/voices/eve").json()["styles"] == ["neutral", "happy"]
    assert served.speak("eve@happy").content != served.speak("eve").content
    assert served.speak("eve@neutral").content == served.speak("eve").content
    sad = served.speak("eve@sad")
    assert (sad.status_code, "it has: neutral, happy" in message(sad)) == (404, True)
    assert served.http.delete("/v1/voices/eve").status_code == 200
    assert served.names() == []
    assert not [path for path in served.voices.iterdir() if not path.name.startswith(".")]


def test_mix_speaks_with_the_weighted_embedding(served: Served) -> None:
    served.add("low")
    served.add("high", wav(speech(5, 16_000)))

    def mix(**fields: Any) -> httpx.Response:
        parts = [{"voice": "low", "weight": 3}, {"voice": "high", "weight": 1}]
        return served.http.post("/v1/voices", json={"name": "both", "mix": parts, **fields})

    for wrong, status in (
        ({"mix": [{"voice": "low"}]}, 400),
        ({"mix": [{"voice": "low"}, {"voice": "absent"}]}, 404),
        ({"mix": [{"voice": "low"}, {"voice": "high", "weight": -1}]}, 400),
        ({"audio": "AAAA"}, 400),
        ({"prompt": "absent"}, 404),
    ):
        assert mix(**wrong).status_code == status
    curl = {"content-type": "application/x-www-form-urlencoded"}
    parts = [{"voice": "low", "weight": 3}, {"voice": "high", "weight": 1}]
    made = served.http.post("/v1/voices", content=json.dumps({"name": "both", "mix": parts}), headers=curl)
    assert made.json()["stored"]["figures"] == {"low": 0.75, "high": 0.25}
    low, high, both = (load_voice(served.voices, name).embedding for name in ("low", "high", "both"))
    unit = [each / np.linalg.norm(each) for each in (low, high, both)]
    mean = 0.75 * unit[0] + 0.25 * unit[1]
    np.testing.assert_allclose(unit[2], mean / np.linalg.norm(mean), atol=1e-5)
    assert len(served.speak("both").content) > 1_000
    assert mix(name="prompted", prompt="low").status_code == 201
    assert len(load_voice(served.voices, "prompted").tokens) == len(load_voice(served.voices, "low").tokens)
    for name in served.names():
        served.http.delete(f"/v1/voices/{name}")


def test_vendor_shapes_add_and_delete_voices(served: Served) -> None:
    eleven = {"xi-api-key": "studio-key-0123456789"}
    files = {"files": ("a.wav", GOOD)}
    labels = json.dumps({"language": "en", "accent": "british"})
    added = served.http.post(
        "/v1/voices/add", data={"name": "My Voice", "labels": labels}, files=files, headers=eleven
    ).json()
    assert added["requires_verification"] is False
    listed = served.http.get("/v1/voices", headers=eleven).json()["voices"]
    assert [(voice["voice_id"], voice["name"], voice["category"]) for voice in listed] == [
        (added["voice_id"], "My Voice", "cloned")
    ]
    bad = served.http.post("/v1/voices/add", data={"name": "x"}, files={"files": ("a", b"no")}, headers=eleven)
    assert (bad.status_code, bad.json()["detail"]["status"]) == (400, "invalid_request")
    assert served.http.delete(f"/elevenlabs/v1/voices/{added['voice_id']}").json() == {"status": "ok"}

    cloned = served.http.post("/voices/clone", data={"name": "C", "language": "en"}, files={"clip": ("a.wav", GOOD)})
    assert (cloned.json()["name"], cloned.json()["language"]) == ("C", "en")
    assert served.http.post("/voices/clone", data={"name": "C"}).status_code == 400
    assert served.http.delete(f"/voices/{cloned.json()['id']}").status_code == 204
    assert served.names() == []


def test_elevenlabs_sdk_adds_and_deletes_voices(served: Served) -> None:
    address = f"http://{served.address}"
    with httpx.Client(timeout=60) as http:
        client = elevenlabs_client.ElevenLabs(api_key="studio-key-0123456789", base_url=address, httpx_client=http)
        for labels in ({}, {"labels": {"accent": "british"}}):  # without labels the package sends null
            added = client.voices.ivc.create(name="Mine", files=[GOOD], **labels)
            assert [voice.voice_id for voice in client.voices.get_all().voices] == [added.voice_id]
            with pytest.raises(elevenlabs_core.ApiError) as caught:
                client.voices.ivc.create(name="Mine", files=[b"no recording"], **labels)
            assert (caught.value.status_code, caught.value.body["detail"]["status"]) == (400, "invalid_request")
            assert client.voices.delete(added.voice_id).status == "ok"
        with pytest.raises(elevenlabs_core.ApiError) as caught:
            client.voices.delete(added.voice_id)
        assert (caught.value.status_code, caught.value.body["detail"]["status"]) == (404, "unknown_voice")


def test_openai_sdk_adds_and_deletes_voices(served: Served) -> None:
    base_url = f"http://{served.address}/v1"
    with openai.OpenAI(api_key="studio-key-0123456789", base_url=base_url, max_retries=0) as client:
        added = client.audio.voices.create(name="mine", consent="cons_1234", audio_sample=("a.wav", GOOD))
        assert (added.id, added.name, added.object, added.type) == ("mine", "mine", "audio.voice", "audio_sample")
        stored = served.http.get("/v1/voices/mine").json()["stored"]
        assert stored["consent"] is True
        assert served.speak(added.id).status_code == 200
        with pytest.raises(openai.APIStatusError) as caught:
            client.audio.voices.create(name="mine", consent="cons_1234", audio_sample=("a.wav", GOOD))
        assert "already" in caught.value.message
        deleted = client.audio.voices.delete(added.id)
        assert (deleted.id, deleted.deleted, deleted.object) == ("mine", True, "audio.voice.deleted")
        with pytest.raises(openai.NotFoundError):
            client.audio.voices.delete(added.id)
        with pytest.raises(openai.BadRequestError):
            client.audio.voices.create(name="mine", prompt="A calm voice.", type="prompt")


def test_voice_of_vllm_omni_may_begin_with_a_dash(served: Served) -> None:
    files = {"audio_sample": ("a.wav", GOOD)}
    added = served.http.post("/v1/audio/voices", data={"name": "-mine", "consent": "c"}, files=files)
    assert added.status_code == 200, added.text
    assert served.http.delete(f"/v1/audio/voices/{added.json()['id']}").status_code == 200


def test_voice_of_vllm_omni_has_its_transcript_and_a_usable_name(served: Served) -> None:
    files = {"audio_sample": ("a.wav", GOOD)}
    fields = {"consent": "c", "ref_text": "Hello there.", "speaker_description": "warm"}
    added = served.http.post("/v1/audio/voices", data={"name": "My Voice", **fields}, files=files).json()
    assert (added["success"], added["name"]) == (True, "My Voice")
    name = added["voice"]["name"]
    try:
        described = served.http.get(f"/v1/voices/{name}").json()
        assert (described["name"], described["description"]) == ("My Voice", "warm")
        assert served.speak(name).status_code == 200
    finally:
        assert served.http.delete(f"/v1/audio/voices/{name}").json()["success"] is True
    for data, field in (({"name": "x"}, "consent"), ({"consent": "c"}, "name"), ({"name": "", "consent": "c"}, "name")):
        refused = served.http.post("/v1/audio/voices", data=data, files=files)
        assert (refused.status_code, field in refused.json()["error"]["message"]) == (400, True)
    refused = served.http.post("/v1/audio/voices", data={"name": "x", "consent": "c"})
    assert (refused.status_code, "audio_sample" in refused.text) == (400, True)
    refused = served.http.post("/v1/audio/voices", data={"name": "x", **fields}, files=files, headers=key("reader"))
    assert refused.status_code == 403
    assert served.names() == []


def test_cartesia_sdk_adds_and_deletes_voices(served: Served) -> None:
    address = f"http://{served.address}"
    with cartesia_sdk.Cartesia(api_key="studio-key-0123456789", base_url=address, max_retries=0) as client:
        added = client.voices.clone(clip=GOOD, name="Mine", language="en")
        assert [voice.id for voice in client.voices.list()] == [added.id]
        client.voices.delete(added.id)
        with pytest.raises(cartesia_sdk.NotFoundError):
            client.voices.delete(added.id)
        with pytest.raises(cartesia_sdk.BadRequestError):
            client.voices.clone(clip=b"no recording", name="Mine", language="en")


async def test_deleted_voice_finishes_accepted_utterances(served: Served) -> None:
    """One is being spoken and one waits, unread by the engine, when the voice is deleted; a new one is refused."""
    await asyncio.to_thread(served.add, "gone")
    await asyncio.to_thread(served.add, "stays")
    url = f"ws://{served.address}"
    async with (
        connect(url, ClientSettings(api_key="studio-key-0123456789")) as client,
        client.session(SessionOptions(voice="gone", realtime=False)) as session,
    ):
        session.speak("This is a first sentence, and it is rather long. This is a second one, also long.")
        session.end_text()
        session.speak("This utterance has to wait.")
        session.end_text()
        ends: list[Ended] = []
        is_deleted = False
        async for item in session:
            if not is_deleted and isinstance(item, PcmFrame):
                is_deleted = True
                session.pause()
                await asyncio.to_thread(served.http.delete, "/v1/voices/gone")
                assert await asyncio.to_thread(served.names) == ["stays"]
                assert (await asyncio.to_thread(served.speak, "gone")).status_code == 404
                session.resume()
            if isinstance(item, Ended):
                ends.append(item)
                if len(ends) == 2:
                    session.speak("A new utterance.")
                    session.end_text()
                elif len(ends) == 3:
                    break
    assert [end.outcome for end in ends] == [Outcome.DONE, Outcome.DONE, Outcome.ERROR]
    assert [end.receipt.text_remaining for end in ends[:2]] == ["", ""]
    assert ends[2].error is not None
    assert ends[2].error.code.value == "unknown_voice"
    await until(lambda: [path.name for path in served.voices.iterdir()] == ["stays"])


@pytest.mark.parametrize("scheme", ["ws", "grpc"])
async def test_client_adds_lists_mixes_and_deletes(served: Served, scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}://{served.address if scheme == 'ws' else served.grpc_address}"
    file = tmp_path / "a.wav"
    file.write_bytes(GOOD)

    def client(name: str | None) -> Client:
        return connect(url, ClientSettings(api_key=None if name is None else f"{name}-key-0123456789"))

    async with client("studio") as studio, client("reader") as reader, client(None) as stranger:
        added = await studio.voices.add("kim", file, consent=True, transcript=SAID, languages=["en"], tags=["calm"])
        assert (added.id, added.languages, added.tags, added.sample_rate) == ("kim", ("en",), ("calm",), 24_000)
        assert added.stored is not None
        assert added.stored.owner == "studio"
        assert added.stored.figures["seconds"] == pytest.approx(4.0, abs=0.1)
        leo = await studio.voices.add("leo", wav(speech(5, 16_000)), consent=True, languages="en, de", tags="deep")
        assert (leo.languages, leo.tags) == (("en", "de"), ("deep",))
        mixed = await studio.voices.mix("both", {"kim": 1, "leo": 3})
        assert mixed.stored is not None
        assert mixed.stored.figures == {"kim": 0.25, "leo": 0.75}
        assert [voice.id for voice in await reader.voices.list()] == ["both", "kim", "leo"]
        assert replace(await reader.voices.get("kim"), is_default=True) == added

        refusals: list[tuple[Awaitable[object], type[TTSWorkerError], str]] = [
            (studio.voices.add("bad", GOOD), InvalidRequest, "consent"),
            (studio.voices.add("bad", wav(speech(1, 16_000)), consent=True), InvalidRequest, "3 to 30 s"),
            (studio.voices.add("bad", b"", consent=True), InvalidRequest, "recording"),
            (studio.voices.add("bad", "/nowhere/a.wav", consent=True), InvalidRequest, "cannot be read"),
            (studio.voices.add("bad", GOOD, color="red"), InvalidRequest, "color"),
            (studio.voices.add("kim", GOOD, consent=True), IllegalCommand, "already"),
            (studio.voices.mix("bad", {"kim": 1}), InvalidRequest, "mix"),
            (studio.voices.mix("bad", {"kim": 1, "absent": 1}), UnknownVoice, "absent"),
            (studio.voices.mix("bad", ["kim", "leo"]), InvalidRequest, "mix"),  # type: ignore[arg-type]
            (studio.voices.add("bad", GOOD, transcript=7), InvalidRequest, "transcript"),
            (studio.voices.get("absent"), UnknownVoice, "absent"),
            (studio.voices.get(""), UnknownVoice, "unknown"),
            (studio.voices.delete("a/b"), UnknownVoice, "a/b"),
            (studio.voices.delete("absent"), UnknownVoice, "absent"),
            (reader.voices.add("bad", GOOD, consent=True), Forbidden, "enroll"),
            (reader.voices.delete("kim"), Forbidden, "enroll"),
            (stranger.voices.list(), Unauthenticated, "API key"),
        ]
        for call, error, words in refusals:
            with pytest.raises(error, match=words):
                await call
        for name in ("both", "kim", "leo"):
            await studio.voices.delete(name)
        assert await reader.voices.list() == []


def test_bundle_without_prompt_models_says_so(tmp_path: Path) -> None:
    """Voices are added and converted by models that a bundle may lack: an error that no retry mends."""
    bundle = copy_of("cosyvoice2", tmp_path)
    for file in bundle.glob("*.onnx"):
        file.unlink()
    engine = {"kind": "cosyvoice", "bundle": str(bundle), "device": "cpu", "threads": 1, "memory_gb": 0.1}
    settings = load_settings(flags={"engines": {"cosy": engine}, "session": {"loudness": None}})
    with (
        worker_in_thread(settings) as worker,
        httpx.Client(base_url=f"http://{worker.address}", timeout=60) as http,
    ):
        listed = http.get("/v1/voices").json()
        voice = listed["voices"][0]
        recording = {"audio": ("a.wav", GOOD)}
        added = http.post("/v1/voices", data={"name": "anna", "consent": "true"}, files=recording)
        converted = http.post("/v1/audio/conversions", data={"voice": voice["id"]}, files=recording)
    assert (listed["can_add"], voice["capabilities"]) == (False, []), "a speaker without prompt audio"
    for response in (added, converted):
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["retryable"]) == (400, "invalid_request", False)


async def test_client_of_an_absent_worker_reports_it() -> None:
    for scheme in ("ws", "grpc"):
        async with connect(f"{scheme}://127.0.0.1:9") as client:
            with pytest.raises(ConnectionLost):
                await client.voices.list()


async def test_control_tags_are_in_words_and_reports(served: Served) -> None:
    await asyncio.to_thread(served.add, "gil")
    described = (await asyncio.to_thread(served.http.get, "/v1/voices/gil")).json()
    assert "[laughter]" in described["control_tags"]
    text = "Well [laughter] that is <strong>fine</strong>."
    settings = ClientSettings(api_key="studio-key-0123456789")
    async with (
        connect(f"ws://{served.address}", settings) as client,
        client.session(SessionOptions(voice="gil", realtime=False, instruct="happy")) as session,
    ):
        session.speak(text)
        session.end_text()
        async for item in session:
            if isinstance(item, Ended):
                break
    assert isinstance(item, Ended)
    ended = item
    assert ended.outcome is Outcome.DONE
    assert ended.receipt.text_spoken == text
    assert [word.text for word in ended.receipt.words] == ["Well", "[laughter]", "that", "is", "<strong>fine</strong>."]


def encoded(container: str, codec: str, rate_hz: int) -> bytes:
    av = pytest.importorskip("av", reason="PyAV is not installed")
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate_hz, layout="mono")
        samples = (32_767 * speech(4, rate_hz).samples).clip(-32_768, 32_767).astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = rate_hz
        for packet in (*stream.encode(frame), *stream.encode(None)):
            file.mux(packet)
    return out.getvalue()


@pytest.mark.parametrize(
    ("container", "codec", "rate_hz"), [("mp4", "aac", 44_100), ("adts", "aac", 44_100), ("webm", "libopus", 48_000)]
)
def test_m4a_aac_and_webm_recordings_are_read(served: Served, container: str, codec: str, rate_hz: int) -> None:
    audio = encoded(container, codec, rate_hz)
    assert served.add("phone", audio).json()["stored"]["figures"]["seconds"] == pytest.approx(4.0, abs=0.2)
    assert served.http.delete("/v1/voices/phone").status_code == 200
    with pytest.raises(InvalidRequest, match="longer than 3 s"):
        read_recording(audio, max_s=3)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_recording(audio[: len(audio) // 3][:200])


def test_m4a_without_pyav_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(MissingExtra, match=r"pip install"):
        read_recording(b"\x00\x00\x00\x20ftypM4A " + bytes(100))


def test_opus_in_ogg_is_read() -> None:
    out = io.BytesIO()
    soundfile.write(out, speech(4, 48_000).samples, 48_000, format="OGG", subtype="OPUS")
    assert read_recording(out.getvalue()).seconds == pytest.approx(4.0, abs=0.1)


def test_voice_routes_are_documented(served: Served) -> None:
    paths = served.http.get("/openapi.json").json()["paths"]
    assert {"get", "post"} <= paths["/v1/voices"].keys()
    assert {"get", "delete"} <= paths["/v1/voices/{name}"].keys()
    form = paths["/v1/voices"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert {"audio", "name", "transcript", "consent", "style", "mix"} <= form["properties"].keys()
    assert "/v1/voices/add" in paths
    assert "/voices/clone" in paths
