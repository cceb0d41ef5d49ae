"""Several engines in one worker: loading on demand, eviction, voice routing and enrollment."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.conftest import until
from tests.fakes.enroller import EnrollingWorker, ToneEnroller, serving_worker
from tests.fakes.recordings import SAID, speech, wav
from tests.integration.test_session import to_end
from tests.unit.cosyvoice.bundles import tiny
from tts_worker.audio.decode import Recording
from tts_worker.engine.loop import EngineLoop
from tts_worker.engine.tone import ToneEngine
from tts_worker.errors import (
    ConfigError,
    IllegalCommand,
    InvalidRequest,
    NotReady,
    OverCapacity,
    UnknownModel,
    UnknownVoice,
)
from tts_worker.models.manager import ModelState
from tts_worker.models.policy import EvictionRules
from tts_worker.settings import load_settings
from tts_worker.types import Command, EngineInfo, Open, Outcome, SessionOptions
from tts_worker.voices.enrollment import Enrollment, voice_name
from tts_worker.worker import Worker, running_worker

TEXT = "Hello there, my friend."
DEMAND = {"preload": ["a"], "on_demand": True, "resident_cap": 2}


@pytest.fixture(autouse=True)
def no_min_residency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.worker.EvictionRules", partial(EvictionRules, min_residency_s=0))


class NamedTone(ToneEngine):
    """A tone engine with voices named after it."""

    def __init__(self, name: str, languages: tuple[str, ...]) -> None:
        super().__init__()
        self.info = replace(self.info, voices=(f"{name}-one", f"{name}-two"), languages=languages)

    def handle(self, command: Command) -> None:
        if isinstance(command, Open):
            command = replace(command, params=replace(command.params, voice="tone"))
        super().handle(command)


LANGUAGES = {"a": ("en",), "b": ("en", "de"), "c": ("zh",)}


class ManyWorker(Worker):
    """Engines a, b and c; those in ``hold`` do not finish loading, those in ``broken`` fail."""

    def __init__(self, voices: dict[str, Any] | None = None, **models: Any) -> None:
        engines = {name: {"kind": "tone"} for name in LANGUAGES}
        super().__init__(
            load_settings(flags={"engines": engines, "models": {**DEMAND, **models}, "voices": voices or {}})
        )
        self.hold = asyncio.Event()
        self.hold.set()
        self.broken: set[str] = set()

    async def start(self) -> None:
        for name, languages in LANGUAGES.items():
            self.hub.voices.add_unloaded(name, "tone", self.info(name, languages))
        await self.models.start()

    def info(self, name: str, languages: tuple[str, ...]) -> EngineInfo:
        return NamedTone(name, languages).info

    async def _load(self, name: str) -> None:
        await self.hold.wait()
        if name in self.broken:
            raise ConfigError("a file is missing")
        engine = EngineLoop(lambda: NamedTone(name, LANGUAGES[name]), name=name)
        await engine.start()
        self.hub.add_engine(name, "tone", engine)
        self.engines[name] = engine


@asynccontextmanager
async def many(**models: Any) -> AsyncIterator[ManyWorker]:
    worker = ManyWorker(**models)
    await worker.start()
    try:
        yield worker
    finally:
        worker.hold.set()
        await worker.stop()


def fast(**options: Any) -> SessionOptions:
    return SessionOptions(realtime=False, **options)


async def spoken(worker: Worker, options: SessionOptions) -> str:
    """Speak and return the voice used."""
    session = await worker.hub.admit(options)
    session.speak(TEXT)
    session.end_text()
    frames, ended = await to_end(session)
    session.close()
    assert (ended.outcome, bool(frames)) == (Outcome.DONE, True)
    return session.params.voice


async def test_every_configured_model_is_listed_with_its_state() -> None:
    worker = ManyWorker(preload=["a"], on_demand=False)
    async with serving_worker(worker) as address, httpx.AsyncClient(base_url=f"http://{address}") as http:
        models = (await http.get("/v1/models")).json()["data"]
        assert {model["id"]: model["state"] for model in models if "state" in model} == {
            "a": "resident",
            "b": "cold",
            "c": "cold",
        }
        assert (await http.get("/v1/models/b")).json()["state"] == "cold"


async def test_default_voice_outlasts_the_reload_of_its_model() -> None:
    async with many(preload=["a", "b"], on_demand=False) as worker:
        worker.hold.clear()
        reloading = asyncio.create_task(worker.models.reload("a", free_first=True))
        await until(lambda: worker.models.state("a") is ModelState.LOADING and not worker.is_loaded("a"))
        assert worker.hub.voices.default == "a-one"
        with pytest.raises(NotReady) as refusal:
            worker.hub.open(fast())
        assert refusal.value.retry_after_s
        worker.hold.set()
        await reloading
        assert await spoken(worker, fast()) == "a-one"


async def test_session_loads_its_model() -> None:
    async with many() as worker:
        assert worker.models.resident == ("a",)
        assert {voice.name for voice in worker.hub.voices} >= {"a-one", "b-one", "c-two"}
        assert await spoken(worker, fast(voice="b-two")) == "b-two"
        assert set(worker.models.resident) == {"a", "b"}
        assert await spoken(worker, fast(model="c")) == "c-one"
        assert set(worker.models.resident) == {"a", "c"}  # the cap is two, the default stays
        with pytest.raises(UnknownVoice):
            await worker.hub.admit(fast(voice="d-one"))
        with pytest.raises(UnknownModel):
            await worker.hub.admit(fast(model="d"))


@pytest.mark.parametrize("voice", [None, "alloy"])
async def test_openai_model_selects_a_voice_of_its_own(voice: str | None) -> None:
    request = {"input": "Hi.", "voice": voice, "response_format": "pcm"}
    worker = ManyWorker()
    async with serving_worker(worker) as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        spoken = await http.post("/v1/audio/speech", json={**request, "model": "b"})
        assert spoken.status_code == 200, spoken.text
        assert set(worker.models.resident) == {"a", "b"}
        other = await http.post("/v1/audio/speech", json={**request, "model": "b", "voice": "a-one"})
        assert (other.status_code, other.json()["error"]["code"]) == (400, "invalid_request")


async def test_session_that_cannot_wait_gets_retry_after() -> None:
    async with many() as worker:
        with pytest.raises(NotReady, match="being loaded") as refused:
            worker.hub.open(fast(voice="b-one"))
        assert (refused.value.retryable, refused.value.retry_after_s) == (True, 2)
        await worker.load("b")
        worker.hub.open(fast(voice="b-one")).close()


async def test_language_and_capability_choose_the_voice() -> None:
    async with many() as worker:
        assert await spoken(worker, fast()) == "a-one"
        assert await spoken(worker, fast(language="en-GB")) == "a-one"
        assert await spoken(worker, fast(language="de")) == "b-one"
        assert await spoken(worker, fast(language="zh")) == "c-one"
        for options in (
            {"voice": "a-one", "language": "de"},
            {"voice": "a-one", "model": "b"},
            {"language": "ja"},
            {"needs": ("instruct",)},
            {"voice": "a-one", "needs": ("instruct",)},
        ):
            with pytest.raises(InvalidRequest):
                await worker.hub.admit(fast(**options))
        assert worker.hub.live_sessions == 0


async def test_model_in_use_is_not_evicted() -> None:
    async with many(ttl_s=1) as worker:
        session = await worker.hub.admit(fast(voice="b-one"))
        with pytest.raises(IllegalCommand, match="in use by 1 sessions"):
            await worker.unload("b")
        with pytest.raises(OverCapacity) as full:  # a is the default and b speaks
            await worker.hub.admit(fast(voice="c-one"))
        assert full.value.retry_after_s is not None
        session.speak(TEXT)
        session.end_text()
        _, ended = await to_end(session)
        assert ended.outcome is Outcome.DONE
        session.close()
        assert await spoken(worker, fast(voice="c-one")) == "c-one"
        assert worker.models.state("b") is ModelState.COLD


async def test_concurrent_sessions_loads_and_unloads() -> None:
    """Every session either finishes or is rejected with a retryable error."""
    async with many() as worker:
        completed = 0

        async def speak_repeatedly(number: int) -> None:
            nonlocal completed
            name = "abc"[number % 3]
            for _ in range(4):
                try:
                    assert await spoken(worker, fast(voice=f"{name}-one", seed=number)) == f"{name}-one"
                    completed += 1
                except (NotReady, OverCapacity):
                    await asyncio.sleep(0)

        async def unload_and_load() -> None:
            for name in "bcbcbc":
                for call in (worker.load, worker.unload):
                    try:
                        await call(name)
                    except (IllegalCommand, OverCapacity):
                        await asyncio.sleep(0)
                worker.models.evict_idle()

        await asyncio.gather(*(speak_repeatedly(number) for number in range(12)), unload_and_load(), unload_and_load())
        assert completed >= 16  # at least those of the default engine
        assert worker.hub.live_sessions == 0
        assert set(worker.models.resident) == set(worker.engines) <= {"a", "b", "c"}
        assert len(worker.engines) <= 2


async def test_http_and_websocket_wait_bounded_for_a_model() -> None:
    worker = ManyWorker(load_wait_s=0.05)
    async with serving_worker(worker) as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        request = {"input": TEXT, "voice": "b-one", "response_format": "pcm"}
        worker.hold.clear()
        late = await client.post("/v1/audio/speech", json=request)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "not_ready")
        assert late.headers["retry-after"] == "2"
        worker.hold.set()
        await worker.load("b")
        answer = await client.post("/v1/audio/speech", json=request)
        assert (answer.status_code, len(answer.content) > 1_000) == (200, True)
        async with connect(f"ws://{address}/v1/stream?voice=b-two") as socket:
            assert json.loads(await socket.recv())["voice"] == "b-two"
        scraped = (await client.get("/metrics")).text
        assert 'tts_model_resident{model="b"} 1.0' in scraped
        assert 'tts_model_load_seconds_count{model="b"} 1.0' in scraped


async def test_load_failure_is_retryable_without_details() -> None:
    async with many() as worker:
        worker.broken.add("b")
        for _ in range(2):
            with pytest.raises(NotReady, match="could not be loaded") as refused:
                await worker.hub.admit(fast(voice="b-one"))
            assert "file" not in refused.value.message
            assert refused.value.retry_after_s is not None
        with pytest.raises(ConfigError, match="file"):
            await worker.load("b")
        assert worker.hub.ready


async def test_worker_stopped_while_loading_leaks_nothing() -> None:
    worker = ManyWorker()
    await worker.start()
    worker.hold.clear()
    waiting = [asyncio.create_task(worker.hub.admit(fast(voice="b-one"))) for _ in range(3)]
    await asyncio.sleep(0)
    await worker.stop()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, NotReady) for result in results)


@pytest.mark.parametrize(
    ("models", "word"),
    [
        ({"preload": ["x"]}, "models.preload"),
        ({"preload": ["tone"], "resident_cap": 0}, "models.resident_cap"),
        ({"ttl_s": -1}, "models.ttl_s"),
        ({"keep": 3}, "models.keep"),
    ],
)
def test_invalid_model_settings_name_the_key(models: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load_settings(flags={"engines": {"tone": {"kind": "tone"}}, "models": models})


def test_preload_beyond_the_cap_is_rejected() -> None:
    engines = {name: {"kind": "tone"} for name in "abcd"}
    with pytest.raises(ConfigError, match="resident_cap"):
        load_settings(flags={"engines": engines, "models": {"preload": list("abcd")}})
    assert load_settings(flags={"engines": engines}).default_engine == "a"
    assert load_settings(flags={"engines": engines, "models": {"preload": ["c", "b"]}}).default_engine == "c"


# -- voices from recordings -------------------------------------------------------------------------------------------


class BlockedEnroller(ToneEnroller):
    """Waits for ``unblocked`` before it enrolls a voice."""

    def __init__(self) -> None:
        super().__init__()
        self.unblocked = threading.Event()

    def enroll(self, name: str, recording: Recording, transcript: str) -> None:
        assert self.unblocked.wait(60)
        super().enroll(name, recording, transcript)


async def test_cancelled_caller_does_not_cancel_the_enrollment() -> None:
    enroller = BlockedEnroller()
    enrollment = Enrollment(enroller)
    cancelled = asyncio.create_task(enrollment.voice_of(wav(speech(2)), "one"))
    await until(lambda: enrollment.pending)
    waiting = asyncio.create_task(enrollment.voice_of(wav(speech(2)), "one"))
    cancelled.cancel()
    enroller.unblocked.set()
    name = (await waiting).name
    assert name == voice_name(wav(speech(2)), "one")
    assert enroller.enrolled == [name]
    enrollment.close()


async def test_pending_enrollments_are_limited() -> None:
    enroller = BlockedEnroller()
    enrollment = Enrollment(enroller, max_pending=1)
    first = asyncio.create_task(enrollment.voice_of(wav(speech(2)), "one"))
    await until(lambda: enrollment.pending)
    with pytest.raises(OverCapacity):
        await enrollment.voice_of(wav(speech(2)), "another")
    enroller.unblocked.set()
    await first
    enrollment.close()


async def test_voices_in_use_are_not_evicted() -> None:
    enroller = ToneEnroller()
    enrollment = Enrollment(enroller, max_unused=1)
    names = [(await enrollment.voice_of(wav(speech(2)), text)).name for text in ("one",)]
    enrolled = await enrollment.voice_of(wav(speech(2)), "two", in_use=lambda: names)
    assert enrolled.evicted == ()
    enrolled = await enrollment.voice_of(wav(speech(2)), "three")
    assert enrolled.evicted == (*names, voice_name(wav(speech(2)), "two"))
    enrollment.close()


async def test_a_voice_taken_during_an_enrollment_remains() -> None:
    worker = EnrollingWorker()
    worker.enroller = enroller = BlockedEnroller()
    enroller.unblocked.set()
    await worker.start()
    try:
        texts = ("one", "two", "three")  # as many as remain unused
        first, *_ = [await worker.hub.enroll(wav(speech(2)), text) for text in texts]
        enroller.unblocked.clear()
        enrolling = asyncio.create_task(worker.hub.enroll(wav(speech(2)), "four"))
        await until(lambda: worker.hub.count_sessions("tone"))
        session = worker.hub.open(SessionOptions(voice=first))
        enroller.unblocked.set()
        await enrolling
        assert worker.hub.voices.is_taken(first)
        session.close()
    finally:
        await worker.stop()


async def test_the_voice_of_a_queued_utterance_remains() -> None:
    """A session that has chosen another voice still speaks what it was given before."""
    worker = EnrollingWorker()
    await worker.start()
    try:
        first = await worker.hub.enroll(wav(speech(2)), "one")
        session = worker.hub.open(SessionOptions(voice=first))
        session.speak("Hello. " * 100)
        session.end_text()
        session.speak("Good bye.")
        worker.hub.configure(session, SessionOptions(voice="tone"))
        for text in ("two", "three", "four"):
            await worker.hub.enroll(wav(speech(2)), text)
        assert worker.hub.voices.is_taken(first)
        session.close()
    finally:
        await worker.stop()


@pytest.mark.timeout(400)  # runs neural networks on few cores
async def test_cosyvoice_enrolls_a_voice_and_uses_it() -> None:
    """A tiny CosyVoice model beside another engine is loaded for a session; its voice is removed with it."""
    pytest.importorskip("torch", reason="torch is not installed")
    engines = {
        "tone": {"kind": "tone"},
        "cosy": {
            "kind": "cosyvoice",
            "bundle": str(tiny("cosyvoice3")),
            "device": "cpu",
            "threads": 1,
            "memory_gb": 0.1,
            "max_utterances": 4,
        },
    }
    models = {"preload": ["tone"], "on_demand": True, "load_wait_s": 600}
    flags = {"engines": engines, "models": models, "session": {"loudness": None}}
    async with running_worker(load_settings(flags=flags)) as worker:
        with pytest.raises(InvalidRequest, match="no engine"):
            await worker.hub.enroll(wav(speech(4)), SAID, engine="tone")
        assert not worker.is_loaded("cosy")
        name = await worker.hub.enroll(wav(speech(4)), SAID)
        assert await worker.hub.enroll(wav(speech(4)), SAID, engine="cosy") == name
        assert await spoken(worker, fast(voice=name, seed=3)) == name
        assert await spoken(worker, fast(voice=name, instruct="Softly.", needs=("instruct",))) == name
        without_transcript = await worker.hub.enroll(wav(speech(4)))
        assert without_transcript != name
        assert await spoken(worker, fast(voice=without_transcript, seed=3)) == without_transcript
        for audio, word in ((wav(speech(1)), "3 to 30 s"), (b"RIFF", "cannot be read"), (b"", "empty")):
            with pytest.raises(InvalidRequest, match=word):
                await worker.hub.enroll(audio)
        await worker.unload("cosy")
        with pytest.raises(UnknownVoice):
            await worker.hub.admit(fast(voice=name))
