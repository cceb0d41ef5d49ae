"""Speech recognition while the user speaks: when it runs, and on which audio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import until
from tts_worker.features.agent.listener import MAX_SPEECH_S, SpeechListener

RATE_HZ = 1_000
Heard = list[tuple[str, bool]]


class Counter:
    """Recognizes the duration in milliseconds."""

    async def recognize(self, pcm: bytes, sample_rate_hz: int) -> str:
        await asyncio.sleep(0)
        assert len(pcm) % 2 == 0
        return str(len(pcm) * 1_000 // 2 // sample_rate_hz)


@asynccontextmanager
async def listening(needs_interim: Callable[[], bool]) -> AsyncIterator[tuple[SpeechListener, Heard]]:
    heard: Heard = []
    listener = SpeechListener(Counter(), lambda text, final: heard.append((text, final)), needs_interim)
    task = asyncio.create_task(listener.run())
    try:
        yield listener, heard
    finally:
        task.cancel()
        await asyncio.wait({task})


def audio(duration_ms: int) -> bytes:
    return bytes(2 * duration_ms)


async def test_interim_words_only_while_they_are_awaited() -> None:
    waiting = True
    async with listening(lambda: waiting) as (listener, heard):
        listener.begin(RATE_HZ)
        listener.add(audio(400))
        listener.add(audio(200))
        await until(lambda: heard == [("600", False)])
        waiting = False
        listener.add(audio(600))
        listener.end()
        await until(lambda: heard == [("600", False), ("1200", True)])


async def test_noise_too_short_for_words_is_final_without_words() -> None:
    async with listening(lambda: True) as (listener, heard):
        listener.begin(RATE_HZ)
        listener.end()
        await until(lambda: heard == [("", True)])


async def test_long_speech_is_recognized_in_portions() -> None:
    async with listening(lambda: False) as (listener, heard):
        listener.begin(RATE_HZ)
        portion_ms = round(MAX_SPEECH_S * 1_000)
        listener.add(audio(portion_ms))
        listener.add(audio(300))
        listener.end()
        await until(lambda: heard == [(str(portion_ms), True), ("300", True)])


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["begin", "end", "pause"]) | st.integers(1, 900), max_size=20), interim=st.booleans()
)
def test_every_speech_ends_with_all_of_its_audio(steps: list[str | int], interim: bool) -> None:
    """Whatever the order of inputs: no audio is lost, recognized twice, or taken from outside of speech."""

    async def run() -> None:
        expected: list[int] = []
        speech_ms: int | None = None
        async with listening(lambda: interim) as (listener, heard):
            for step in [*steps, "end"]:
                match step:
                    case "begin" | "end":
                        if speech_ms is not None:
                            expected.append(speech_ms)
                        speech_ms = 0 if step == "begin" else None
                        _ = listener.begin(RATE_HZ) if step == "begin" else listener.end()
                    case int():
                        listener.add(audio(step))
                        speech_ms = None if speech_ms is None else speech_ms + step
                    case _:
                        await anyio.lowlevel.checkpoint()
            final = [str(ms) if ms >= 100 else "" for ms in expected]
            await until(lambda: [text for text, is_final in heard if is_final] == final)

    asyncio.run(run())
