"""Text in a script that the voice cannot speak is named by every protocol, over real sockets, with the CPU voice."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.conftest import serving
from tests.integration.grpc_worker import GrpcWorker, running_grpc_worker, say
from tests.integration.test_websocket import dial
from tts_worker.client import connect
from tts_worker.client.async_tts import AsyncTTS
from tts_worker.errors import UnspeakableText
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.types import Ended, Outcome, PcmFrame, SessionOptions, Skipped, Words

HEART: dict[str, Any] = {"engines": {"hibari": {"kind": "hibari"}}}
MIXED = "Hello 你好 world, mixed text."
HEARD = "Hello world, mixed text."
SKIPPED = (Skipped(6, 8),)
FAST = SessionOptions(realtime=False)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def address() -> AsyncIterator[str]:
    async with serving(**HEART) as served:
        yield served


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        (MIXED, [(6, 8)]),
        ("日本語 then English.", [(0, 3)]),
        ("She said Привет, как дела to me.", [(9, 15), (17, 25)]),
        ("Γειά σου, Maria.", [(0, 8)]),
        ("It ends in 你好", [(11, 13)]),
        ("**Привет** 👋 Anna", [(2, 8)]),
    ],
)
async def test_websocket_names_skipped_text(address: str, text: str, skipped: list[tuple[int, int]]) -> None:
    async with dial(address, "/v1/stream?realtime=false") as client:
        await client.send(type="text", text=text, end=True)
        done = await client.until("done")
        assert done["skipped"] == [{"start": start, "end": end, "reason": "script"} for start, end in skipped]
        assert (done["text_spoken"], done["text_remaining"]) == (text, "")
        words = [
            word for word in done["words"] if any(a < word["end_char"] and word["start_char"] < b for a, b in skipped)
        ]
        assert words == [], "a skipped word has times"


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("Say ʘʘ, then stop.", [(4, 6)]),
        ("ᏣᎳᎩ is a language.", [(0, 3)]),
        ("It ends. In ʘʘ ǃ!", [(12, 16)]),
        ("It ends.\n\nʘʘ", [(10, 12)]),
        ("Good. ʘʘ. Good.", [(6, 8)]),
    ],
)
async def test_word_without_pronunciation_is_named(address: str, text: str, skipped: list[tuple[int, int]]) -> None:
    async with dial(address, "/v1/stream?realtime=false") as client:
        await client.send(type="text", text=text, end=True)
        done = await client.until("done")
        assert done["skipped"] == [{"start": start, "end": end, "reason": "pronunciation"} for start, end in skipped]
        assert (done["text_spoken"], done["text_remaining"]) == (text, "")


async def test_reasons_stay_apart(address: str) -> None:
    async with dial(address, "/v1/stream?realtime=false") as client:
        await client.send(type="text", text="One ʘʘ 你好 two 你好.", end=True)
        done = await client.until("done")
        assert [(run["start"], run["end"], run["reason"]) for run in done["skipped"]] == [
            (4, 6, "pronunciation"),
            (7, 9, "script"),
            (14, 16, "script"),
        ]


@pytest.mark.parametrize(
    "text",
    ["Hello, world.", "Café naïve Zoë", "π is 3", "🎉 **bold** `code`", "12, 14 & 15", "*** — ...", "a → b", "x"],
)
async def test_spoken_text_has_no_skipped_field(address: str, text: str) -> None:
    async with dial(address, "/v1/stream?realtime=false") as client:
        await client.send(type="text", text=text, end=True)
        assert "skipped" not in await client.until("done")


@pytest.mark.parametrize("text", ["Привет", "你好，世界。", "Γειά σου", "สวัสดี", "Привет. Как дела?"])
async def test_wholly_foreign_text_is_unspeakable(address: str, text: str) -> None:
    async with dial(address, "/v1/stream?realtime=false") as client:
        await client.send(type="start", voice="heart", realtime=False)
        await client.send(type="text", text=text, end=True)
        error = await client.until("error")
        assert (error["code"], error["text_spoken"], error["text_remaining"]) == ("unspeakable_text", "", text)
        assert client.pcm == b""


async def test_words_messages_name_what_they_pass_over(address: str) -> None:
    async with dial(address, "/v1/stream?realtime=false") as client:
        await client.send(type="text", text=MIXED, end=True)
        await client.until("done")
        named = [
            item for item in client.log if isinstance(item, dict) and item["type"] == "words" and "skipped" in item
        ]
        (message,) = named
        assert message["skipped"] == [{"start": 6, "end": 8, "reason": "script"}]
        assert message["words"][-1]["start_char"] >= 8


async def test_skipped_text_beyond_a_stop_is_remaining(address: str) -> None:
    text = "Hello there my friend, this is quite a long text. And here it says 你好 to you."
    async with dial(address) as client:
        await client.send(type="text", text=text, end=True)
        await client.until_audio()
        await client.send(type="stop")
        stopped = await client.until("stopped")
        assert stopped["text_spoken"] + stopped["text_remaining"] == text
        assert "你好" in stopped["text_remaining"]
        assert "skipped" not in stopped


async def test_report_of_the_python_client_tells_what_was_heard(address: str) -> None:
    async with AsyncTTS(f"ws://{address}", voice="heart") as tts:
        speech = await tts.speak(MIXED)
        assert speech.report is not None
        assert speech.report.skipped == SKIPPED
        assert (speech.report.text_spoken, speech.report.text_heard) == (MIXED, HEARD)
        with pytest.raises(UnspeakableText):
            await tts.speak("Привет")


async def test_stop_at_the_last_word_counts_skipped_text(address: str) -> None:
    """The client splits the text itself when it stops, by the words and the skipped text that it has received."""
    async with connect(f"ws://{address}") as client:
        session = (await client.open(FAST)).session
        session.speak(MIXED)
        session.end_text()
        samples = 0
        words: list[Words] = []
        while not isinstance(item := await session.next(), Ended):
            if isinstance(item, PcmFrame):
                samples += item.samples
            elif isinstance(item, Words):
                words.append(item)
                if any(word.text == "mixed" for word in item.words):
                    break
        assert not isinstance(item, Ended)
        mixed = next(word for each in words for word in each.words if word.text == "mixed")
        while samples < mixed.start_sample:
            item = await session.next()
            samples += item.samples if isinstance(item, PcmFrame) else 0
        session.stop(played_samples=mixed.start_sample)
        while not isinstance(item := await session.next(), Ended):
            pass
        assert item.receipt.text_spoken == "Hello 你好 world,"
        assert item.receipt.skipped == SKIPPED
        assert item.receipt.text_heard == "Hello world,"


async def test_batch_names_what_it_skips(address: str) -> None:
    async with connect(f"ws://{address}") as client:
        batch = await client.batches.submit([MIXED, "Hello.", f"Be kind.<|endofprompt|>{MIXED}"])
        results = [result async for result in client.batches.results(batch.id)]
        assert [result.skipped for result in results] == [SKIPPED, (), (Skipped(29, 31),)]
        assert all(result.audio for result in results)


async def test_log_holds_the_length_of_skipped_text(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with AsyncTTS(f"ws://{address}") as tts:
            await tts.speak(MIXED)
    (ended,) = [record for record in caplog.records if record.message == "utterance ended"]
    assert vars(ended)["fields"]["skipped_chars"] == 2
    assert "你" not in caplog.text


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def grpc_worker() -> AsyncIterator[GrpcWorker]:
    async with running_grpc_worker(**HEART) as worker:
        yield worker


async def test_grpc_synthesis_names_skipped_text(grpc_worker: GrpcWorker) -> None:
    await grpc_worker.start("whole", realtime="false")
    final = (await say(grpc_worker, MIXED, session="whole")).frames[-1]
    assert [(run.start, run.end, run.reason) for run in final.receipt.skipped] == [(6, 8, "script")]
    assert (final.receipt.text_spoken, final.receipt.text_remaining) == (MIXED, "")


async def test_grpc_stop_names_skipped_text(grpc_worker: GrpcWorker) -> None:
    await grpc_worker.start("stopped", lead_ms="2000")
    call = await grpc_worker.speak("你好 Hello there, my friend. 世界 " * 8, session="stopped").begin()
    while not any(word.text == "friend." for frame in call.frames for word in frame.words):
        assert await call.next() is not None
    await call.read_frames(len(call.frames) + 30)
    response = await grpc_worker.control(pb.STOP, session="stopped")
    final = await call.end()
    assert [(run.start, run.end) for run in response.skipped] == [(run.start, run.end) for run in final.receipt.skipped]
    assert (response.skipped[0].start, response.skipped[0].end) == (0, 2)
    assert all(run.end <= len(response.spoken_text) for run in response.skipped)


async def test_grpc_conversation_names_skipped_text(grpc_worker: GrpcWorker) -> None:
    async with AsyncTTS(f"grpc://{grpc_worker.member.address}") as tts:
        live = tts.stream(MIXED)
        async for _ in live:
            pass
        assert live.report is not None
        assert (live.report.skipped, live.report.text_heard) == (SKIPPED, HEARD)


async def test_grpc_words_name_what_they_pass_over(grpc_worker: GrpcWorker) -> None:
    async with connect(f"grpc://{grpc_worker.member.address}") as client:
        session = (await client.open(FAST)).session
        session.speak(MIXED)
        session.end_text()
        named = []
        while not isinstance(item := await session.next(), Ended):
            named += item.skipped if isinstance(item, Words) else ()
        assert (tuple(named), item.receipt.skipped, item.outcome) == (SKIPPED, SKIPPED, Outcome.DONE)
