"""The pipecat service in a real offline pipeline, against a real worker."""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

if sys.version_info < (3, 11):
    pytest.skip("pipecat needs Python 3.11", allow_module_level=True)
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="'audioop' is deprecated", category=DeprecationWarning)
    pytest.importorskip("pipecat.services.tts_service", reason="needs the extra 'pipecat'")

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData, TTSUsageMetricsData
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.workers.runner import WorkerRunner

from tests.behavior.recording_client import RecordingClient
from tests.behavior.transports import Setup, end_speech, faulty_worker, serve_setup, serve_worker
from tests.fakes.proxy import run_proxy
from tts_worker.client import Client, SessionOptions
from tts_worker.errors import InvalidRequest
from tts_worker.integrations.pipecat import TTSWorkerSettings, TTSWorkerTTSService
from tts_worker.local import LocalConnector
from tts_worker.types import UrlMode

REPLY = "Hello there, my friend. How are you today?"


async def reference(text: str, **options: Any) -> bytes:
    async with Client(LocalConnector(lambda: faulty_worker(Setup()))) as client:
        recorder = RecordingClient((await client.open(SessionOptions(realtime=False, **options))).session)
        return recorder.pcm[(await recorder.synthesize(text)).key]


class Tap(FrameProcessor):
    """Records the frames that pass."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []
        self.changed = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        self.changed.set()
        await self.push_frame(frame, direction)

    def of(self, kind: type[Any]) -> list[Any]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    @property
    def pcm(self) -> bytes:
        return b"".join(frame.audio for frame in self.of(TTSAudioRawFrame))


class Bot:
    """A running pipeline: text is queued on one end, frames are recorded on both."""

    def __init__(self, worker: PipelineWorker, up: Tap, down: Tap) -> None:
        self.worker = worker
        self.up = up
        self.down = down

    async def write(self, *tokens: str, end: bool = True) -> None:
        await self.worker.queue_frame(LLMFullResponseStartFrame())
        for token in tokens:
            await self.worker.queue_frame(LLMTextFrame(token))
        if end:
            await self.worker.queue_frame(LLMFullResponseEndFrame())

    async def wait_stopped(self, turns: int = 1) -> None:
        await self.down.until(lambda: len(self.down.of(TTSStoppedFrame)) >= turns)

    async def wait_samples(self, samples: int) -> None:
        await self.down.until(lambda: len(self.down.pcm) >= 2 * samples)


@asynccontextmanager
async def run_pipeline(service: TTSService, rate_hz: int = 24_000) -> AsyncIterator[Bot]:
    up = Tap()
    down = Tap()
    worker = PipelineWorker(
        Pipeline([up, service, down]),
        params=PipelineParams(audio_out_sample_rate=rate_hz, enable_metrics=True, enable_usage_metrics=True),
        cancel_on_idle_timeout=False,
        enable_rtvi=False,
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def on_started(worker: Any, frame: Any) -> None:
        started.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    task = asyncio.create_task(runner.run())
    await started.wait()
    try:
        yield Bot(worker, up, down)
    finally:
        await worker.queue_frame(EndFrame())
        await task


async def test_turn_is_one_utterance_with_words_and_metrics() -> None:
    async with serve_setup(Setup()) as address, run_pipeline(TTSWorkerTTSService(f"ws://{address}")) as bot:
        began_s = time.monotonic()
        await bot.write(*(REPLY[i : i + 3] for i in range(0, len(REPLY), 3)))
        await bot.wait_stopped()
        kinds = [
            type(f) for f in bot.down.frames if isinstance(f, TTSStartedFrame | TTSAudioRawFrame | TTSStoppedFrame)
        ]
        assert kinds[0] is TTSStartedFrame
        assert kinds[-1] is TTSStoppedFrame
        assert len(bot.down.of(TTSStartedFrame)) == 1
        assert bot.down.pcm == await reference(REPLY)
        words = bot.down.of(TTSTextFrame)
        assert [word.text for word in words] == REPLY.split()
        assert [word.pts for word in words] == sorted(word.pts for word in words)
        data = [item for frame in bot.down.of(MetricsFrame) for item in frame.data]
        assert any(isinstance(item, TTFBMetricsData) and 0 < item.value < time.monotonic() - began_s for item in data)
        assert sum(item.value for item in data if isinstance(item, TTSUsageMetricsData)) >= len(REPLY) - 1
        assert bot.up.of(ErrorFrame) == []


async def test_token_mode_produces_the_same_audio() -> None:
    async with serve_setup(Setup()) as address:
        service = TTSWorkerTTSService(f"ws://{address}", text_aggregation_mode=TextAggregationMode.TOKEN)
        async with run_pipeline(service) as bot:
            await bot.write(*(REPLY[i : i + 3] for i in range(0, len(REPLY), 3)))
            await bot.wait_stopped()
            assert bot.down.pcm == await reference(REPLY)
            assert "".join(word.text for word in bot.down.of(TTSTextFrame)).replace(" ", "") == REPLY.replace(" ", "")


async def test_unpunctuated_text_is_spoken_while_the_model_pauses() -> None:
    async with serve_setup(Setup()) as address:
        mode = TextAggregationMode.TOKEN
        service = TTSWorkerTTSService(f"ws://{address}", text_aggregation_mode=mode, flush_after_ms=20)
        async with run_pipeline(service) as bot:
            await bot.write("I would like to book a table for two ", end=False)
            await bot.wait_samples(10_000)
            await bot.worker.queue_frame(InterruptionFrame())  # an unfinished turn delays the end of the pipeline


async def test_interruption_drops_the_rest_of_the_turn() -> None:
    async with serve_setup(Setup()) as address, run_pipeline(TTSWorkerTTSService(f"ws://{address}")) as bot:
        story = "This is a long story that goes on and on. " * 5
        await bot.write(story, end=False)
        await bot.wait_samples(10_000)
        await bot.worker.queue_frame(InterruptionFrame())
        await bot.down.until(lambda: bot.down.of(InterruptionFrame))
        words = [word.text for word in bot.down.of(TTSTextFrame)]
        cut = bot.down.frames.index(bot.down.of(InterruptionFrame)[0])
        await bot.write("Yes?")
        await bot.down.until(lambda: len(bot.down.of(TTSStartedFrame)) == 2)
        second = bot.down.frames.index(bot.down.of(TTSStartedFrame)[1])  # the first turn may end after the interruption
        await bot.down.until(lambda: any(isinstance(f, TTSStoppedFrame) for f in bot.down.frames[second:]))
        after = [f.audio for f in bot.down.frames[cut:] if isinstance(f, TTSAudioRawFrame)]
        assert b"".join(after) == await reference("Yes?")
        assert (
            words == ["This", "is", "a", "long", "story", "that", "goes", "on", "and", "on."][: len(words)]
            or len(words) > 10
        )


async def test_speak_frame_between_two_turns() -> None:
    async with serve_setup(Setup()) as address, run_proxy(address) as proxy:
        async with run_pipeline(TTSWorkerTTSService(f"ws://{proxy.address}")) as bot:
            await bot.write("First.")
            await bot.worker.queue_frame(TTSSpeakFrame("Second."))
            await bot.write("Third.")
            await bot.wait_stopped(3)
            expected = [await reference(text) for text in ("First.", "Second.", "Third.")]
            assert bot.down.pcm == b"".join(expected)
            assert [word.text for word in bot.down.of(TTSTextFrame)] == ["First.", "Second.", "Third."]
        assert proxy.connections <= 3


async def test_settings_apply_to_the_next_turn() -> None:
    async with serve_setup(Setup()) as address, run_pipeline(TTSWorkerTTSService(f"ws://{address}")) as bot:
        await bot.write("Old.")
        await bot.worker.queue_frame(TTSUpdateSettingsFrame(delta=TTSWorkerSettings(voice="tone-high", speed=2.0)))
        await bot.write("New.")
        await bot.wait_stopped(2)
        assert bot.down.pcm == await reference("Old.") + await reference("New.", voice="tone-high", speed=2.0)


@pytest.mark.parametrize("rate_hz", [8_000, 12_000, 48_000])
async def test_pipeline_rate_is_resampled_on_either_side(rate_hz: int) -> None:
    """The worker sends 8 and 48 kHz; 12 kHz is no rate of a session and is resampled here."""
    async with (
        serve_setup(Setup()) as address,
        run_pipeline(TTSWorkerTTSService(f"ws://{address}"), rate_hz=rate_hz) as bot,
    ):
        await bot.write(REPLY)
        await bot.wait_stopped()
        assert {frame.sample_rate for frame in bot.down.of(TTSAudioRawFrame)} == {rate_hz}
        if rate_hz != 12_000:
            assert bot.down.pcm == await reference(REPLY, sample_rate=rate_hz)
        else:
            assert len(bot.down.pcm) == pytest.approx(len(await reference(REPLY)) / 2, rel=0.05)


async def test_options_reach_the_worker_and_can_be_updated() -> None:
    lexicon = {"Dr": "Doctor"}
    options: dict[str, Any] = {"model": "tone", "seed": 3, "lexicon": lexicon, "normalize": False, "urls": "host"}
    text = "Dr Hill, 2h 15m, https://example.com/a."
    async with (
        serve_setup(Setup()) as address,
        run_pipeline(TTSWorkerTTSService(f"ws://{address}", speed=4.0, **options)) as bot,
    ):
        await bot.write(text)
        delta = TTSWorkerSettings(lexicon=None, normalize=None, urls=None, seed=4)
        await bot.worker.queue_frame(TTSUpdateSettingsFrame(delta=delta))
        await bot.worker.queue_frame(TTSUpdateSettingsFrame(delta=TTSWorkerSettings(urls="shorten")))  # type: ignore[arg-type]
        await bot.write(text)
        await bot.wait_stopped(2)
        old = await reference(text, seed=3, speed=4.0, lexicon=lexicon, normalize=False, urls=UrlMode.HOST)
        new = await reference(text, seed=4, speed=4.0)
        assert old != new
        assert bot.down.pcm == old + new
        [error] = bot.up.of(ErrorFrame)
        assert "urls must be one of drop, host, keep" in error.error
        data = [item for frame in bot.down.of(MetricsFrame) for item in frame.data if isinstance(item, TTFBMetricsData)]
        assert data[-1].model == "tone"


async def test_option_that_the_worker_refuses_is_an_error_frame() -> None:
    async with serve_setup(Setup()) as address, run_pipeline(TTSWorkerTTSService(f"ws://{address}", model="x")) as bot:
        await bot.write("Hello?")
        await bot.up.until(lambda: bot.up.of(ErrorFrame))
        assert '"x"' in bot.up.of(ErrorFrame)[0].error


@pytest.mark.parametrize(
    "option",
    [
        {"sample_rate": 12_000},
        {"urls": "shorten"},
        {"lexicon": {"Dr": 7}},
        {"max_ahead_s": 0.0},
        {"voice": 5},
        {"speed": "fast"},
        {"normalize": "yes"},
        {"flush_after_ms": "soon"},
    ],
)
def test_invalid_option_is_refused_at_once(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(option))):
        TTSWorkerTTSService("ws://127.0.0.1:1", **option)


async def test_unspeakable_text_is_no_error() -> None:
    async with serve_setup(Setup()) as address, run_pipeline(TTSWorkerTTSService(f"ws://{address}")) as bot:
        for turn in range(1, 5):
            await bot.write("🎉🎉")
            await bot.wait_stopped(turn)
        assert bot.up.of(ErrorFrame) == []
        await bot.write("Still here.")
        await bot.wait_stopped(5)
        assert len(bot.down.pcm) > 10_000


async def test_context_gets_no_skipped_text() -> None:
    setup = Setup({"engines": {"hibari": {"kind": "hibari"}}})
    async with serve_setup(setup) as address, run_pipeline(TTSWorkerTTSService(f"ws://{address}")) as bot:
        await bot.write("Hello 你好 my friend. Привет, Anna.")
        await bot.wait_stopped()
        words = bot.down.of(TTSTextFrame)
        assert [word.text for word in words] == ["Hello", "my", "friend.", "Anna."]
        assert "".join(word.raw_text or word.text for word in words).isascii(), "the context holds what was heard"
        await bot.write("It ends in 世界.")
        await bot.wait_stopped(2)
        assert [word.text for word in bot.down.of(TTSTextFrame)][4:] == ["It", "ends", "in"]
        assert bot.up.of(ErrorFrame) == []
        await bot.write("Привет, мир.")
        await bot.up.until(lambda: bot.up.of(ErrorFrame))
        await bot.write("Bye.")
        await bot.down.until(lambda: any(word.text == "Bye." for word in bot.down.of(TTSTextFrame)))
        assert len(bot.down.of(TTSTextFrame)) == 8, "text of which nothing was spoken"


async def test_unreachable_worker_pushes_an_error_frame() -> None:
    async with run_pipeline(TTSWorkerTTSService("ws://127.0.0.1:1")) as bot:
        await bot.write("Hello?")
        await bot.up.until(lambda: bot.up.of(ErrorFrame))
        assert "cannot be reached" in bot.up.of(ErrorFrame)[0].error


async def test_pipeline_survives_a_lost_worker() -> None:
    async with (
        serve_setup(Setup()) as address,
        run_proxy(address) as proxy,
        run_pipeline(TTSWorkerTTSService(f"ws://{proxy.address}", max_ahead_s=0.3)) as bot,
    ):
        await bot.write("This is a long story that goes on and on. " * 5)
        await bot.wait_samples(5_000)
        proxy.reset()
        await bot.wait_stopped()
        await bot.up.until(lambda: bot.up.of(ErrorFrame))  # pushed upstream
        assert "lost" in bot.up.of(ErrorFrame)[0].error
        await bot.write("Back again.")
        await bot.wait_stopped(2)
        assert bot.down.pcm.endswith(await reference("Back again."))


@pytest.mark.parametrize("reason", ["drain", "reload"])
async def test_worker_that_ends_the_speech_is_an_error_frame(reason: str) -> None:
    async with (
        faulty_worker(Setup()) as worker,
        serve_worker(worker) as address,
        run_pipeline(TTSWorkerTTSService(f"ws://{address}", max_ahead_s=0.3)) as bot,
    ):
        await bot.write("This is a long story that goes on and on. " * 5)
        await bot.wait_samples(5_000)
        await end_speech(worker, reason)
        await bot.wait_stopped()
        await bot.up.until(lambda: bot.up.of(ErrorFrame))


async def test_service_import_loads_no_engine() -> None:
    code = (
        "import tts_worker.integrations.pipecat, sys;"
        "assert not {'torch', 'hibari', 'fastapi', 'uvicorn'} & set(sys.modules), 'engine or server'"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE)
    _, error = await process.communicate()
    assert process.returncode == 0, error.decode()[-400:]
