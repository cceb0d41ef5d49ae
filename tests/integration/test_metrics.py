"""``/metrics`` as Prometheus parses it: types, names, labels and values."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import serving, tone_settings, until
from tests.fakes.clock import in_virtual_time
from tests.fakes.nvml import FakeNvml
from tests.fakes.scrape import scraped
from tests.integration.test_session import to_end
from tests.integration.test_websocket import dial
from tts_worker import __version__
from tts_worker.engine import factory
from tts_worker.engine.handle import EngineStats
from tts_worker.engine.tone import ToneEngine
from tts_worker.gpus import GpuMonitor, GpuState
from tts_worker.metrics import MAX_VOICES, Metrics
from tts_worker.server.application import Application
from tts_worker.server.security import transport_of
from tts_worker.serving import create_application
from tts_worker.types import SessionOptions
from tts_worker.worker import Worker, running_worker

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
ROUTES = DOCS.with_name("routes.md")
TEXT = "Hello there, my friend."


async def test_metrics_follow_the_prometheus_conventions() -> None:
    async with serving() as address, dial(address) as client, httpx.AsyncClient(base_url=f"http://{address}") as http:
        await client.send(type="text", text=TEXT, end=True)
        await client.until("done")
        await http.post("/v1/audio/speech", json={"model": "tone", "voice": "tone-low", "input": TEXT})
        text = (await http.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name, family in families.items():
        assert family.documentation, name
        assert family.type in ("counter", "gauge", "histogram"), name
        if family.type == "counter":
            assert all(sample.name.endswith(("_total", "_created")) for sample in family.samples), name
        else:
            assert not name.endswith("_total"), name
    for counter in ("steps", "busy_seconds", "audio_seconds", "faults", "stale_events"):
        assert families[f"tts_engine_{counter}"].type == "counter"
        assert (scraped(text, f"tts_engine_{counter}_total", engine="tone") > 0) is (
            counter not in ("faults", "stale_events")
        )
    assert scraped(text, "tts_build_info", version=__version__) == 1
    assert scraped(text, "process_resident_memory_bytes") > 0
    assert (scraped(text, "tts_max_sessions"), scraped(text, "tts_max_open_sessions")) == (64, 1_024)
    assert 0 < scraped(text, "tts_engine_rtf", engine="tone") < 10
    for name in ("tts_frame_jitter_seconds", "tts_playout_lead_seconds"):
        paced = scraped(text, f"{name}_count", transport="websocket", engine="tone")
        assert paced == scraped(text, f"{name}_bucket", transport="websocket", engine="tone", le="+Inf") > 0
        assert scraped(text, f"{name}_count", transport="openai", engine="tone") == 0  # a download is not paced
    for transport, voice in (("websocket", "tone"), ("openai", "tone-low")):
        labels = {"transport": transport, "engine": "tone", "voice": voice}
        assert scraped(text, "tts_utterances_total", outcome="done", **labels) == 1
        assert scraped(text, "tts_first_audio_seconds_count", **labels) == 1
        assert scraped(text, "tts_audio_sent_seconds_total", **labels) > 0


async def test_every_metric_is_documented(worker: Worker) -> None:
    documented = set(re.findall(r"`((?:tts|process|python)_[a-z_]+)`", DOCS.read_text("utf-8")))
    families = text_string_to_metric_families(worker.metrics.render().decode())
    exported = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    ours = {name for name in exported if name.startswith("tts_") and not name.endswith("_created")}
    assert ours == {name for name in documented if name.startswith("tts_")}


def test_every_transport_label_is_documented(worker: Worker) -> None:
    sentence = DOCS.read_text("utf-8").partition("`transport` is ")[2].partition(";")[0]
    paths = re.findall(r"`(?:[A-Z, ]+ )(/[^`]*)`", ROUTES.read_text("utf-8"))
    assert len(paths) > 50
    found: list[Application] = []
    create_application(worker, found.append)
    names = {transport_of(path, found[0].paths, found[0].apis) for path in paths}
    assert (
        {"websocket", "openai", "webrtc", "telephony", "batch", "http"}
        <= names
        <= set(re.findall(r"`([a-z-]+)`", sentence))
    )


@in_virtual_time
async def test_slots_in_use_are_exported() -> None:
    async with running_worker(tone_settings(session={"max_sessions": 3, "slot_idle_s": 0.5})) as worker:
        silent = worker.hub.open()
        speaking = worker.hub.open()
        speaking.speak(TEXT * 20)
        await asyncio.sleep(1.0)
        text = worker.metrics.render()
        assert scraped(text, "tts_sessions") == 2
        assert scraped(text, "tts_slots_used") == scraped(text, "tts_speaking_sessions") == 1
        silent.close()


@in_virtual_time
async def test_first_audio_excludes_time_without_text() -> None:
    writers_time_s = 1.0
    async with running_worker(tone_settings(session={"flush_after_ms": 0})) as worker:
        session = worker.hub.open(SessionOptions(realtime=False))
        session.speak("Hel")
        await asyncio.sleep(writers_time_s)
        session.speak("lo there.")
        session.end_text()
        await to_end(session)
        text = worker.metrics.render()
        assert scraped(text, "tts_first_audio_seconds_count") == 1
        assert scraped(text, "tts_first_audio_seconds_sum") < writers_time_s


@in_virtual_time
async def test_first_audio_excludes_the_previous_utterance() -> None:
    async with running_worker(tone_settings()) as worker:
        session = worker.hub.open(SessionOptions(realtime=True))
        session.speak("A first turn that takes a second or so to play.")
        session.end_text()
        session.speak("Second.")
        session.end_text()
        _, first = await to_end(session)
        played_s = first.receipt.samples_sent / 24_000
        await to_end(session)
        text = worker.metrics.render()
        assert scraped(text, "tts_first_audio_seconds_count") == 2
        assert scraped(text, "tts_first_audio_seconds_sum") < played_s


@pytest.mark.parametrize("rate_hz", [8_000, 44_100])
async def test_sent_audio_counts_seconds_at_any_rate(worker: Worker, rate_hz: int) -> None:
    session = worker.hub.open(SessionOptions(realtime=False, sample_rate=rate_hz))
    session.speak(TEXT)
    session.end_text()
    _, ended = await to_end(session)
    sent_s = scraped(worker.metrics.render(), "tts_audio_sent_seconds_total")
    assert sent_s == pytest.approx(ended.receipt.samples_sent / rate_hz)


async def test_wasted_audio_counts_seconds_at_any_rate(worker: Worker) -> None:
    rate_hz = 48_000
    session = worker.hub.open(SessionOptions(realtime=True, sample_rate=rate_hz))
    session.speak(TEXT * 20)
    await session.next()
    await until(lambda: session.buffered_samples > rate_hz)
    session.stop()
    _, ended = await to_end(session)
    wasted = ended.receipt.samples_generated - ended.receipt.samples_sent
    wasted_s = scraped(worker.metrics.render(), "tts_audio_wasted_seconds_total")
    assert wasted_s == pytest.approx(wasted / rate_hz)


async def test_batch_without_a_listener_has_no_underruns() -> None:
    slow = {"tone": {"kind": "tone", "cost_per_audio_s": 2.0}}  # slower than playback, as a batch behind calls
    async with serving(engines=slow) as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        batch = (await http.post("/v1/batch", json={"items": [{"input": "Hi there."}]})).json()["id"]
        await http.get(f"/v1/batch/{batch}/results")
        await http.post("/v1/audio/speech", json={"input": "Hi there."})
        text = (await http.get("/metrics")).text
    assert scraped(text, "tts_underruns_total", transport="openai") > 0
    assert scraped(text, "tts_audio_sent_seconds_total", transport="batch") > 0
    for name in ("tts_underruns_total", "tts_underrun_seconds_total"):
        assert scraped(text, name, transport="batch") == 0, name


async def test_ended_utterance_counts_for_its_own_voice(worker: Worker) -> None:
    session = worker.hub.open(SessionOptions(voice="tone-low", realtime=False))
    session.speak(TEXT)
    session.end_text()
    session.configure(replace(session.params, voice="tone-high"))  # of later utterances
    await to_end(session)
    text = worker.metrics.render()
    for name in ("tts_utterances_total", "tts_first_audio_seconds_count", "tts_queue_wait_seconds_count"):
        assert (scraped(text, name, voice="tone-low"), scraped(text, name, voice="tone-high")) == (1, 0), name


async def test_unloaded_engine_has_no_counters(worker: Worker) -> None:
    name = "tone"
    assert scraped(worker.metrics.render(), "tts_model_resident", model=name) == 1
    await worker.unload(name)
    assert "tts_engine_steps_total{" not in worker.metrics.render().decode()


class GpuTone(ToneEngine):
    """A tone engine that says that it runs on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.info = replace(self.info, extra=(("gpu", "GPU-plain"),))


async def test_gpu_is_exported_while_an_engine_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setattr(factory, "open_tone", lambda settings: GpuTone())
    async with running_worker(tone_settings()) as worker:
        transport = httpx.ASGITransport(create_application(worker))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            await until(lambda: worker.metrics.gpus.states)
            text = (await http.get("/metrics")).text
            assert scraped(text, "tts_gpu_memory_used_bytes", gpu="GPU-plain") == 3
            assert scraped(text, "tts_gpu_memory_total_bytes", gpu="GPU-plain") == 8
            assert scraped(text, "tts_gpu_utilization_ratio", gpu="GPU-plain") == 0.4
            await worker.unload("tone")
            assert "tts_gpu_memory_used_bytes{" not in (await http.get("/metrics")).text


def test_voice_labels_are_bounded() -> None:
    metrics = Metrics()
    labels = {metrics.voice_label(f"voice-{number}") for number in range(10 * MAX_VOICES)}
    assert len(labels) == MAX_VOICES + 1
    assert "other" in labels
    assert metrics.voice_label("prompt-0123456789abcdef") == "enrolled"


def test_stages_processes_and_gpus_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    stages = (("prefill", 0.5), ("flow", 2.0))
    metrics.watch_engine("cosy", EngineStats(stages_s=stages, process_cpu_s=3.0, process_memory_bytes=7))
    states = {"GPU-a": GpuState(3, 8, 0.4), "MIG-b": GpuState(1, 2, None)}
    monkeypatch.setattr(GpuMonitor, "states", property(lambda self: states))
    text = metrics.render()
    assert scraped(text, "tts_engine_stage_seconds_total", engine="cosy", stage="flow") == 2.0
    assert scraped(text, "tts_engine_process_cpu_seconds_total", engine="cosy") == 3.0
    assert scraped(text, "tts_engine_process_memory_bytes", engine="cosy") == 7
    assert scraped(text, "tts_gpu_memory_used_bytes", gpu="GPU-a") == 3
    assert scraped(text, "tts_gpu_memory_total_bytes", gpu="MIG-b") == 2
    assert scraped(text, "tts_gpu_utilization_ratio", gpu="GPU-a") == 0.4
    assert b'tts_gpu_utilization_ratio{gpu="MIG-b"}' not in text
