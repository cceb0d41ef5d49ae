"""The TTS worker protocol as a Python class: streaming, control, and consumers that leave early."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import tone_settings, until
from tts_worker import create_worker
from tts_worker.adapter import TTSWorker, WorkerState
from tts_worker.errors import ConfigError, IllegalCommand, InvalidRequest, UnknownModel, UnknownVoice
from tts_worker.types import Outcome, SessionOptions
from tts_worker.worker import Worker

TEXT = "Hello there, my friend. How are you today?"


async def words(text: str = TEXT) -> AsyncIterator[str]:
    for word in text.split(" "):
        yield word + " "
        await asyncio.sleep(0)


async def endless() -> AsyncIterator[str]:
    while True:
        yield "more and more words. "
        await asyncio.sleep(0)


@pytest.fixture
async def adapter(worker: Worker) -> TTSWorker:
    return TTSWorker(worker)


async def settled(worker: Worker) -> None:
    """Wait until no sessions, engine slots and tasks remain."""
    await until(lambda: not worker.hub.live_sessions and not worker.engines["tone"].live_utterances)
    await until(lambda: not any("-text" in task.get_name() for task in asyncio.all_tasks()))


async def test_frames_and_state(worker: Worker, adapter: TTSWorker) -> None:
    assert adapter.state is WorkerState.IDLE
    frames = []
    states = []
    async for frame in adapter.synthesize_stream(words()):
        states.append(adapter.state)
        frames.append(frame)
    assert set(states[:-1]) == {WorkerState.SYNTHESIZING}  # idle once the last frame is returned
    assert adapter.state is WorkerState.IDLE
    assert {len(frame) for frame in frames[:-1]} == {960}
    await settled(worker)


async def test_chunks_have_metadata(worker: Worker, adapter: TTSWorker) -> None:
    stream = adapter.synthesize_chunks(words())
    position = 0
    index = 0
    spoken = []
    async for chunk in stream:
        assert (chunk.index, chunk.start_sample) == (index, position)
        assert chunk.end_sample == position + len(chunk.pcm) // 2
        assert 0 <= chunk.text_start < chunk.text_end <= len(TEXT) + 1
        for word in chunk.words:
            assert chunk.start_sample <= word.start_sample < chunk.end_sample
            spoken.append(word.text)
        position = chunk.end_sample
        index = index + 1
    assert spoken == TEXT.split()
    assert stream.outcome is Outcome.DONE
    assert stream.receipt is not None
    assert stream.receipt.text_spoken == TEXT + " "
    await settled(worker)


async def test_pause_resume_stop(worker: Worker, adapter: TTSWorker) -> None:
    assert not await adapter.control("PAUSE")
    stream = adapter.synthesize_chunks(endless())
    for _ in range(30):  # the first words have been played
        await anext(stream)
    assert await adapter.control("PAUSE")
    assert adapter.state is WorkerState.PAUSED
    blocked = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not blocked.done()
    assert await adapter.control("RESUME")
    await blocked
    assert await adapter.control("STOP")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert stream.outcome is Outcome.STOPPED
    assert stream.receipt is not None
    assert stream.receipt.text_spoken
    # The adapter still works: the next utterance is complete.
    assert len([f async for f in adapter.synthesize_stream(words())]) > 50
    with pytest.raises(InvalidRequest):
        await adapter.control("RELOAD")
    await settled(worker)


async def test_stop_before_the_first_text(worker: Worker, adapter: TTSWorker) -> None:
    async def silent() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield "never"

    stream = adapter.synthesize_chunks(silent())
    assert await adapter.control("STOP")
    assert [chunk async for chunk in stream] == []
    assert stream.outcome is Outcome.STOPPED
    await settled(worker)


async def test_break_frees_the_session(worker: Worker, adapter: TTSWorker) -> None:
    async for _ in adapter.synthesize_stream(endless()):
        break
    gc.collect()
    await settled(worker)


async def test_cancelled_consumer_frees_the_session(worker: Worker, adapter: TTSWorker) -> None:
    started = asyncio.Event()

    async def consume() -> None:
        async for _ in adapter.synthesize_stream(endless()):
            started.set()

    task = asyncio.create_task(consume())
    await asyncio.wait({task, waiting := asyncio.create_task(started.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert waiting.done()
    task.cancel()
    await asyncio.wait({task})
    del task
    gc.collect()
    await settled(worker)


async def test_failing_consumer_frees_the_session(worker: Worker, adapter: TTSWorker) -> None:
    async def consume() -> None:
        async for _ in adapter.synthesize_stream(endless()):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await consume()
    gc.collect()
    await settled(worker)


async def test_text_iterator_error_reaches_the_consumer(worker: Worker, adapter: TTSWorker) -> None:
    async def broken() -> AsyncIterator[str]:
        yield "Some words, "
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async for _ in adapter.synthesize_stream(broken()):
            pass
    await settled(worker)


async def test_streams_of_one_adapter_are_isolated(worker: Worker, adapter: TTSWorker) -> None:
    async def pcm(voice: str) -> bytes:
        return b"".join(
            [f async for f in adapter.synthesize_stream(words(), SessionOptions(voice=voice, realtime=False))]
        )

    voices = ["tone", "tone-low", "tone-high"] * 8
    alone = {voice: await pcm(voice) for voice in set(voices)}
    together = await asyncio.gather(*map(pcm, voices))
    assert together == [alone[voice] for voice in voices]
    await settled(worker)


async def test_alias_of_a_model_selects_its_voice() -> None:
    grpc = {"models": {"cosyvoice2-en-base": {"engine": "tone", "voice": "tone-low"}, "plain": {"engine": "tone"}}}
    async with create_worker(tone_settings(grpc=grpc)) as adapter:

        async def pcm(options: SessionOptions | None = None) -> bytes:
            return b"".join([frame async for frame in adapter.synthesize_stream(words(), options)])

        low, tone = [await pcm(SessionOptions(voice=voice, realtime=False)) for voice in ("tone-low", "tone")]
        for alias, expected in (("cosyvoice2-en-base", low), ("plain", tone)):
            await adapter.load_model(alias)
            assert await pcm() == expected != b""
        await adapter.unload_model("plain")
        assert adapter.state is WorkerState.UNLOADED


async def test_worker_takes_a_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text("engines: {tone: {kind: tone}}")
    async with create_worker(str(file)) as adapter:
        assert [frame async for frame in adapter.synthesize_stream(words())]
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        create_worker(tmp_path / "missing.yaml")


async def test_models_in_use_are_not_unloaded() -> None:
    async with create_worker(tone_settings()) as adapter:
        await asyncio.gather(*(adapter.load_model("tone") for _ in range(5)))
        with pytest.raises(UnknownModel, match="tone"):
            await adapter.load_model("gpt")
        stream = adapter.synthesize_chunks(words())
        with pytest.raises(IllegalCommand, match="in use"):
            await adapter.unload_model("tone")
        async for _ in stream:
            pass
        await adapter.warm_up()
        await adapter.unload_model("tone")
        await adapter.unload_model("tone")
        assert adapter.state is WorkerState.UNLOADED
        await adapter.load_model("tone")
        assert [frame async for frame in adapter.synthesize_stream(words())]
        with pytest.raises(UnknownVoice):
            adapter.synthesize_chunks(words(), SessionOptions(voice="missing"))
