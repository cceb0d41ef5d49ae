"""OpenTelemetry traces of a running worker: spans of utterances, trace context of every transport, sampling."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from tests.conftest import serving
from tests.integration.grpc_worker import running_grpc_worker
from tests.integration.test_websocket import dial
from tts_worker import AsyncTTS
from tts_worker.errors import MissingExtra
from tts_worker.features.tracing import FEATURE, traces
from tts_worker.features.tracing.traces import open_traces
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.settings import Settings

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra 'otel'")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SPOKEN = "Xylophones quarrel under marmalade."
TRACING = {"endpoint": "http://127.0.0.1:9/v1/traces"}


def parent(trace: str, *, sampled: bool = True) -> str:
    return f"00-{trace * 32}-{'b7' * 8}-0{int(sampled)}"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Receives the spans of workers that export traces, when they have stopped."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(traces, "open_traces", lambda endpoint, ratio: open_traces(endpoint, ratio, exporter))
    yield exporter
    exporter.clear()


def utterances(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == "tts.utterance"]


def parts(exporter: InMemorySpanExporter, whole: ReadableSpan) -> dict[str, ReadableSpan]:
    spans = exporter.get_finished_spans()
    return {span.name: span for span in spans if span.parent and span.parent.span_id == whole.context.span_id}


async def test_websocket_utterances_become_spans(exported: InMemorySpanExporter) -> None:
    headers = {"traceparent": parent("a"), "x-request-id": "call-46"}
    async with serving(tracing=TRACING) as address, dial(address, additional_headers=headers) as client:
        await client.send(type="text", text=SPOKEN, end=True)
        done = await client.until("done")
        await client.send(type="start", traceparent=parent("c"))
        await client.send(type="text", text=SPOKEN)
        await client.until_audio()
        await client.send(type="stop")
        await client.until("stopped")
    first, second = utterances(exported)
    assert first.attributes is not None
    assert first.parent is not None
    assert (f"{first.context.trace_id:032x}", f"{first.parent.span_id:016x}") == ("a" * 32, "b7" * 8)
    assert f"{second.context.trace_id:032x}" == "c" * 32  # as a browser chooses it
    assert first.attributes["tts.request_id"] == "call-46"
    assert first.attributes["tts.transport"] == "websocket"
    assert first.attributes["tts.samples"] == done["samples_sent"]
    assert first.attributes["tts.characters"] == len(SPOKEN)
    assert set(parts(exported, first)) == {"queue", "first chunk", "playout"}
    assert set(parts(exported, second)) == {"queue", "first chunk", "playout", "stop"}
    assert not [word for word in SPOKEN.split() for span in exported.get_finished_spans() if word in span.to_json()]


async def test_parts_follow_each_other_inside_the_utterance(exported: InMemorySpanExporter) -> None:
    async with serving(tracing=TRACING) as address, httpx.AsyncClient(base_url=f"http://{address}") as http:
        headers = {"traceparent": parent("d")}
        assert (await http.post("/v1/audio/speech", json={"input": SPOKEN}, headers=headers)).status_code == 200
    (whole,) = utterances(exported)
    assert f"{whole.context.trace_id:032x}" == "d" * 32
    found = parts(exported, whole)
    times = [found[name] for name in ("queue", "first chunk", "playout")]
    edges: list[Any] = [whole.start_time, *(edge for span in times for edge in (span.start_time, span.end_time))]
    assert edges == sorted(edges)
    assert whole.end_time == times[-1].end_time


async def test_grpc_metadata_carries_the_trace(exported: InMemorySpanExporter) -> None:
    async with running_grpc_worker(tracing=TRACING) as server:
        await server.start(realtime="false")
        call = server.stub.Synthesize(metadata=(("traceparent", parent("e")),))
        await call.write(pb.TextChunk(session_id="s", text=SPOKEN))
        await call.done_writing()
        async for _ in call:
            pass
    assert [f"{span.context.trace_id:032x}" for span in utterances(exported)] == ["e" * 32]


async def test_grpc_client_passes_the_trace_on(exported: InMemorySpanExporter) -> None:
    async with running_grpc_worker(tracing=TRACING) as server, AsyncTTS(f"grpc://{server.member.address}") as tts:
        await tts.speak("Hello.", traceparent=parent("3"))
    assert [f"{span.context.trace_id:032x}" for span in utterances(exported)] == ["3" * 32]


async def test_websocket_client_passes_the_trace_on(exported: InMemorySpanExporter) -> None:
    async with serving(tracing=TRACING) as address, AsyncTTS(f"ws://{address}") as tts:
        await tts.speak("Hello.", traceparent=parent("4"))
    assert [f"{span.context.trace_id:032x}" for span in utterances(exported)] == ["4" * 32]


async def test_sampling_follows_the_parent_then_the_ratio(exported: InMemorySpanExporter) -> None:
    tracing = {**TRACING, "sample_ratio": 0.0}
    async with serving(tracing=tracing) as address, httpx.AsyncClient(base_url=f"http://{address}") as http:
        for traceparent in (parent("1"), parent("2", sampled=False), "00-malformed", ""):
            headers = {"traceparent": traceparent}
            await http.post("/v1/audio/speech", json={"input": "Hello."}, headers=headers)
    assert [f"{span.context.trace_id:032x}" for span in utterances(exported)] == ["1" * 32]


async def test_spans_arrive_at_an_otlp_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "voices")
    received: list[tuple[str, bytes]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        try:
            tracing = {"endpoint": f"http://127.0.0.1:{receiver.server_port}/v1/traces"}
            async with serving(tracing=tracing) as address, httpx.AsyncClient(base_url=f"http://{address}") as http:
                await http.post("/v1/audio/speech", json={"input": SPOKEN})
        finally:
            receiver.shutdown()
            thread.join()
    paths, bodies = zip(*received, strict=True)
    assert set(paths) == {"/v1/traces"}
    assert b"tts.utterance" in b"".join(bodies)
    assert b"voices" in b"".join(bodies)


class StuckExporter(InMemorySpanExporter):
    """Exports to a collector that takes spans and does not answer, until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = threading.Event()
        self.release = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_stuck.set()
        self.release.wait(10)
        return super().export(spans)


def test_collector_that_hangs_does_not_delay_the_exit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traces, "EXIT_TIMEOUT_S", 0.01)
    exporter = StuckExporter()
    exported = open_traces(TRACING["endpoint"], 1.0, exporter)
    assert exported is not None
    exported.tracer.start_span("a").end()
    exported.close()
    assert exporter.is_stuck.wait(10)
    assert not exporter.get_finished_spans(), "it waited for the collector"
    assert "does not answer" in caplog.text
    exporter.release.set()


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FEATURE.exporter is not None
    assert FEATURE.exporter(Settings()) is None
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingExtra, match="otel"):
        open_traces("http://127.0.0.1:9/v1/traces", 1.0)
