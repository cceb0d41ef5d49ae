"""Reloading a model in place: new sessions get the new one, calls in progress finish on the old one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.conftest import serving, tone_settings, until
from tests.integration.test_api_keys import APP, OPERATOR, bearer, key_file
from tests.integration.test_session import to_end
from tests.integration.test_websocket import dial
from tests.unit.cosyvoice.bundles import tiny
from tts_worker.engine.factory import EngineFactory, model_version
from tts_worker.engine.loop import EngineState
from tts_worker.errors import (
    BundleError,
    Draining,
    ErrorCode,
    IllegalCommand,
    NotReady,
    OutOfMemory,
    TTSWorkerError,
)
from tts_worker.server.rendering import synthesize
from tts_worker.settings import CosyVoiceEngineSettings, load_settings
from tts_worker.types import Outcome, SessionOptions, State
from tts_worker.worker import running_worker


async def test_calls_finish_on_the_old_model() -> None:
    async with running_worker(tone_settings()) as worker:
        old = worker.engines["tone"]
        talking = worker.hub.open(SessionOptions(realtime=False))
        talking.speak("Hello there, ")
        idle = worker.hub.open(SessionOptions(realtime=False))
        order = [voice.name for voice in worker.hub.voices]
        default = worker.hub.voices.default
        await worker.models.reload("tone")
        new = worker.engines["tone"]
        assert new is not old
        assert [voice.name for voice in worker.hub.voices] == order
        assert worker.hub.voices.default == default
        later = worker.hub.open(SessionOptions(realtime=False))
        later.speak("New.")
        later.end_text()
        assert (await to_end(later))[1].outcome is Outcome.DONE
        assert new.stats.audio_s > 0
        talking.speak("my friend.")
        talking.end_text()
        _, ended = await to_end(talking)
        assert ended.receipt.text_spoken == "Hello there, my friend."
        assert old.stats.audio_s > 0
        await until(lambda: talking.state is idle.state is State.CLOSED)
        assert isinstance(idle.close_error, Draining), "an idle session is told to open another"
        assert later.state is State.IDLE


async def test_speech_cut_off_by_a_reload_may_be_retried() -> None:
    async with running_worker(tone_settings(server={"drain_s": 0.05})) as worker:
        speech = synthesize(worker.hub, SessionOptions(), "Hello there, my friend. " * 50)
        await anext(speech)
        await worker.models.reload("tone", free_first=True)
        with pytest.raises(TTSWorkerError, match="the model was replaced") as cut:
            _ = [item async for item in speech]
        assert (cut.value.code, cut.value.retryable) == (ErrorCode.DRAINING, True)


async def test_cosyvoice_is_freed_before_it_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    bundle = {"kind": "cosyvoice", "bundle": str(tiny("cosyvoice3")), "threads": 1, "max_utterances": 1}
    sections = {"engines": {"cosy": {**bundle, "memory_gb": 0.1}}, "session": {"loudness": "off"}}
    settings = load_settings(None, sections, replaced=("engines",))
    async with running_worker(settings) as worker:
        old = worker.engines["cosy"]
        session = worker.hub.open(SessionOptions(realtime=False))
        session.speak("A.")
        session.end_text()

        def build(self: EngineFactory) -> Any:
            stopped.append(old.state is EngineState.STOPPED)
            return made(self)

        stopped = list[bool]()
        made = EngineFactory.__call__
        monkeypatch.setattr(EngineFactory, "__call__", build)
        reloading = asyncio.create_task(worker.models.reload("cosy", free_first=True))
        await until(lambda: not worker.hub.ready)
        with pytest.raises(NotReady) as refusal:
            worker.hub.open(SessionOptions(realtime=False))
        assert refusal.value.retry_after_s
        assert (await to_end(session))[1].outcome is not Outcome.ERROR, "an utterance in progress ends as usual"
        await reloading
        assert stopped == [True], "its memory is free before the new one is built"
        later = worker.hub.open(SessionOptions(realtime=False))
        later.speak("New.")
        later.end_text()
        assert (await to_end(later))[1].outcome is not Outcome.ERROR

        def full(self: EngineFactory) -> Any:
            raise OutOfMemory("the device has no memory for this model")

        monkeypatch.setattr(EngineFactory, "__call__", full)
        with pytest.raises(OutOfMemory, match="the running model goes on, and its memory can be freed first"):
            await worker.models.reload("cosy")
        assert worker.hub.ready


async def test_failing_reload_leaves_the_old_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: EngineFactory) -> Any:
        raise BundleError("a file is missing")

    async with running_worker(tone_settings()) as worker:
        session = worker.hub.open(SessionOptions(realtime=False))
        with monkeypatch.context() as patch:
            patch.setattr(EngineFactory, "__call__", broken)
            with pytest.raises(BundleError):
                await worker.models.reload("tone")
        assert worker.hub.ready
        session.speak("Still here.")
        session.end_text()
        assert (await to_end(session))[1].outcome is Outcome.DONE
        assert worker.hub.open(SessionOptions()).state is State.IDLE


async def test_concurrent_reload_and_unload_are_refused() -> None:
    async with running_worker(tone_settings()) as worker:
        reloading = asyncio.create_task(worker.models.reload("tone"))
        await until(lambda: worker.models.describe_state("tone") == "reloading")
        for command in (worker.models.reload, worker.models.unload):
            with pytest.raises(IllegalCommand, match="reloaded"):
                await command("tone")
        await reloading
        assert worker.models.describe_state("tone") == "resident"


async def test_worker_stops_while_an_old_model_speaks() -> None:
    async with running_worker(tone_settings()) as worker:
        session = worker.hub.open(SessionOptions())
        session.speak("A long sentence that is still being spoken. " * 20)
        await worker.models.reload("tone")
        assert session.state is State.SPEAKING
    assert session.state is State.CLOSED


async def test_admin_reloads_over_http(tmp_path: Path) -> None:
    async with (
        serving(server={"key_file": str(key_file(tmp_path))}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
        dial(address, additional_headers=bearer(APP)) as idle,
    ):
        await idle.until("ready")
        path = "/v1/models/tone/reload"
        assert (await client.post(path, headers=bearer(APP))).status_code == 403
        assert (await client.post("/v1/models/other/reload", headers=bearer(OPERATOR))).status_code == 404
        assert (await client.post(f"{path}?free_first=maybe", headers=bearer(OPERATOR))).status_code == 400
        answer = (await client.post(path, headers=bearer(OPERATOR))).json()
        assert answer["version"] == answer["previous_version"]
        models = (await client.get("/v1/models", headers=bearer(APP))).json()["data"]
        tone = next(model for model in models if model["id"] == "tone")
        assert (tone["state"], tone["version"]) == ("resident", answer["version"])
        with pytest.raises(ConnectionClosed) as closed:
            await idle.until("nothing")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012, "service restart: clients connect again"


def test_version_follows_the_files_of_a_model(tmp_path: Path) -> None:
    settings = CosyVoiceEngineSettings(kind="cosyvoice", bundle=tmp_path)
    weights = tmp_path / "llm.pt"
    weights.write_bytes(bytes(200_000))
    (tmp_path / "voices").mkdir()
    first = model_version(settings)
    (tmp_path / "voices" / "anna.json").write_text("{}")
    assert model_version(settings) == first, "stored voices are no part of the model"
    weights.write_bytes(bytes(199_999) + b"x")
    assert model_version(settings) != first
    weights.rename(tmp_path / "flow.pt")
    assert model_version(settings) != first
