"""Deepgram's Flux (``/v2/speak``): the vendor's SDK and plain WebSockets against the real server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus

from tests.behavior.table import LONG
from tests.conftest import serving
from tests.fakes.late import LateModule
from tests.features.compat.test_deepgram import SAMPLES, TEXT, Client, dial, sdk
from tests.integration.test_websocket import until_live_sessions

deepgram_flux = LateModule("deepgram.speak.v2.types", "needs the package deepgram-sdk")

pytestmark = [  # of the SDK
    pytest.mark.filterwarnings("ignore:websockets.* is deprecated:DeprecationWarning"),
]

LETTER_MS = 60  # of the tone engine
HELLO_MS = LETTER_MS * len("Hello")


def flux(address: str, query: str = "", **options: Any) -> Any:
    return dial(address, query, "/v2/speak", **options)


async def say(client: Client, text: str = TEXT) -> dict[str, Any]:
    """Say a text, and wait until it was sent."""
    await client.send("Speak", text=text)
    await client.send("Flush")
    return await client.until("SpeechMetadata")


def offset(value_ms: int) -> dict[str, Any]:
    return {"playback_offset": {"type": "time_ms", "value": value_ms}}


async def interrupt(client: Client, at_ms: int | None = None) -> dict[str, Any]:
    await client.send("Interrupt", **({} if at_ms is None else offset(at_ms)))
    return await client.until("SpeechInterrupted")


def kinds(client: Client) -> list[str]:
    return [message["type"] for message in client.log]


# -- the vendor's SDK -------------------------------------------------------------------------------------------------


async def test_sdk_speaks_turns_and_interrupts_one() -> None:
    async with (
        serving() as address,
        sdk(address) as client,
        client.speak.v2.connect(model="flux-haley-en", encoding="linear16", sample_rate=24_000) as socket,
    ):

        async def until(kind: str) -> Any:
            while isinstance(message := await socket.recv(), bytes) or message.type != kind:
                if isinstance(message, bytes):
                    audio.append(message)
            return message

        audio: list[bytes] = []
        assert (await until("Connected")).model_name == "flux-haley-en"
        for word in TEXT.split(" "):
            await socket.send_speak(deepgram_flux.SpeakV2Speak(text=f"{word} "))
        await socket.send_flush()
        started = await until("SpeechStarted")
        ended = await until("SpeechMetadata")
        assert started.speech_id == ended.speech_id
        assert ended.audio_duration_ms == round(len(b"".join(audio)) / 48)
        assert ended.input_character_count == len(TEXT) + 1
        await socket.send_configure(deepgram_flux.SpeakV2Configure(speed=1.25))
        assert (await until("ConfigureSuccess")).applied.speed == 1.25
        await socket.send_speak(deepgram_flux.SpeakV2Speak(text=LONG))
        await until("SpeechStarted")
        at = deepgram_flux.SpeakV2InterruptPlaybackOffset(value=ended.audio_duration_ms + 1)
        await socket.send_interrupt(deepgram_flux.SpeakV2Interrupt(playback_offset=at))
        report = await until("SpeechInterrupted")
        assert (report.text_spoken, report.text_remaining) == ("", LONG)
        await socket.send_close()
        totals = await until("SessionMetadata")
        assert totals.total_audio_duration_ms == ended.audio_duration_ms + 1
        assert totals.total_input_character_count == len(TEXT) + 1 + len(LONG)


# -- turns ------------------------------------------------------------------------------------------------------------


async def test_audio_of_a_turn_is_between_its_start_and_its_end() -> None:
    async with serving() as address, flux(address) as client:
        connected = await client.until("Connected")
        assert connected["model_name"] == connected["model_uuids"][0] == "aura-2-thalia-en"
        for text in (TEXT, "One more."):
            await client.send("Speak", text=text)
            await client.send("Flush")
        for _ in range(2):
            started = await client.until("SpeechStarted")
            assert client.pcm == b""
            flushed = await client.until("Flushed")
            ended = await client.until("SpeechMetadata")
            assert started["speech_id"] == flushed["speech_id"] == ended["speech_id"]
            assert ended["audio_duration_ms"] == round(len(client.pcm) / 48)
            client.pcm = b""
        assert len({message["speech_id"] for message in client.log if "speech_id" in message}) == 2
        await until_live_sessions(address, 0)


async def test_every_flush_of_many_ends_a_turn() -> None:
    """They arrive together: the engine has to be loaded first."""
    async with serving(models={"preload": []}) as address, flux(address) as client:
        for number in range(20):  # more than may be queued
            await client.send("Speak", text=f"This is sentence number {number}. ")
            await client.send("Flush")
        ended = [await client.until("SpeechMetadata") for _ in range(20)]
        assert len({turn["speech_id"] for turn in ended}) == 20
        assert sum(turn["input_character_count"] for turn in ended) == sum(
            len(f"This is sentence number {number}. ") for number in range(20)
        )


async def test_close_finishes_the_turn_and_tells_the_totals() -> None:
    async with serving() as address, flux(address) as client:
        await client.send("Speak", text=TEXT)
        await client.send("Close")
        totals = await client.until("SessionMetadata")
        assert len(client.pcm) // 2 >= SAMPLES
        assert totals["total_audio_duration_ms"] == round(len(client.pcm) / 48)
        assert totals["total_input_character_count"] == totals["total_billable_character_count"] == len(TEXT)
        end = await client.rest()
        assert end.rcvd is not None
        assert end.rcvd.code == 1000


async def test_blank_turn_has_no_audio_and_a_warning() -> None:
    async with serving() as address, flux(address) as client:
        assert (await say(client, " \n"))["audio_duration_ms"] == 0
        assert [message["code"] for message in client.log if message["type"] == "Warning"] == ["NO_SYNTHESIZABLE_TEXT"]


async def test_flush_without_a_turn_is_a_warning() -> None:
    async with serving() as address, flux(address) as client:
        await client.send("Flush")
        assert (await client.until("Warning"))["code"] == "NO_ACTIVE_SPEECH"


# -- interruptions ----------------------------------------------------------------------------------------------------


async def test_interruption_ends_the_audio_and_frees_the_session() -> None:
    async with serving() as address, flux(address) as client:
        await client.send("Speak", text=LONG * 20)
        await client.until_audio(48 * 3_000)
        report = await interrupt(client, HELLO_MS * 4)
        assert LONG.startswith(report["text_spoken"])
        assert report["text_spoken"] + report["text_remaining"] == LONG * 20
        assert 0 < len(report["text_spoken"]) < 40
        assert report["audio_played_ms"] == HELLO_MS * 4
        assert report["metadata"]["audio_duration_ms"] == round(len(client.pcm) / 48)
        assert report["metadata"]["input_character_count"] == len(LONG) * 20
        await until_live_sessions(address, 0)
        client.pcm = b""
        assert (await say(client))["audio_duration_ms"] == round(len(client.pcm) / 48)
        assert "SpeechMetadata" not in kinds(client)[: kinds(client).index("SpeechInterrupted")]


async def test_report_splits_the_text_at_what_was_played() -> None:
    async with serving() as address, flux(address) as client:
        await say(client, "Hello there, my friend.")
        report = await interrupt(client, HELLO_MS + 10)  # sent whole, and still being played
        assert report["text_spoken"].strip() == "Hello"
        assert report["text_remaining"].strip() == "there, my friend."
        assert report["audio_played_ms"] == HELLO_MS + 10


async def test_interruption_between_turns_reports_the_one_being_played() -> None:
    async with serving() as address, flux(address) as client:
        first = (await say(client, "Hello there, my friend."))["audio_duration_ms"]
        second = await say(client, " Second turn.")
        report = await interrupt(client, first + LETTER_MS * len("Second") + 10)
        assert report["metadata"]["speech_id"] == second["speech_id"]
        assert (report["text_spoken"].strip(), report["text_remaining"].strip()) == ("Second", "turn.")


async def test_turns_behind_the_interrupted_one_were_not_heard() -> None:
    async with serving() as address, flux(address) as client:
        first = await say(client, "Hello there. ")
        await client.send("Speak", text=LONG)
        await client.until("SpeechStarted")
        report = await interrupt(client, HELLO_MS + 10)
        assert report["metadata"]["speech_id"] == first["speech_id"]
        assert report["text_spoken"] + report["text_remaining"] == "Hello there. " + LONG
        assert report["text_spoken"].strip() == "Hello"


async def test_offsets_go_on_from_what_was_played() -> None:
    async with serving() as address, flux(address) as client:
        await say(client, "Hello there, my friend.")
        await interrupt(client, HELLO_MS + 10)
        await client.send("Interrupt", **offset(HELLO_MS + 10))
        assert (await client.until("Warning"))["code"] == "INVALID_INTERRUPT_OFFSET"
        await say(client, "Hello again, my friend.")
        report = await interrupt(client, HELLO_MS + 10 + HELLO_MS + 10)
        assert report["text_spoken"].strip() == "Hello"
        await client.send("Close")
        assert (await client.until("SessionMetadata"))["total_audio_duration_ms"] == 2 * (HELLO_MS + 10)


async def test_interruption_without_an_offset_has_no_text() -> None:
    async with serving() as address, flux(address) as client:
        await client.send("Speak", text=LONG * 20)
        await client.until_audio()
        report = await interrupt(client)
        assert report.keys() == {"type", "audio_played_ms", "metadata"}
        assert report["audio_played_ms"] == round(len(client.pcm) / 48)
        await client.send("Interrupt")
        assert (await client.until("Warning"))["code"] == "NO_ACTIVE_SPEECH"


async def test_interruption_in_a_quiet_turn_reports_it() -> None:
    async with serving() as address, flux(address) as client:
        quiet = await say(client, "...")
        await say(client, "Hello there.")
        report = await interrupt(client, 50)
        assert report["metadata"]["speech_id"] == quiet["speech_id"]
        assert (report["text_spoken"], report["text_remaining"]) == ("...", "Hello there.")


async def test_interruption_of_what_was_played_is_a_warning() -> None:
    async with serving() as address, flux(address) as client:
        ended = await say(client)
        await client.send("Interrupt", **offset(ended["audio_duration_ms"]))
        assert (await client.until("Warning"))["code"] == "NO_ACTIVE_SPEECH"


async def test_interruption_before_all_audio_cancels_the_turn() -> None:
    async with serving() as address, flux(address) as client:
        await client.send("Interrupt")
        assert (await client.until("Warning"))["code"] == "NO_AUDIO_GENERATED"
        await client.send("Speak", text="Hel")  # waits for the rest of its word
        await client.send("Interrupt")
        assert (await client.until("Warning"))["code"] == "NO_AUDIO_GENERATED"
        await until_live_sessions(address, 0)
        await say(client)
        assert len(client.pcm) // 2 >= SAMPLES


@given(played=st.lists(st.integers(1, 4_000), min_size=1, max_size=4, unique=True).map(sorted))
@settings(max_examples=8, deadline=None)
def test_reports_together_are_the_text(played: list[int]) -> None:
    async def speak() -> None:
        async with serving() as address, flux(address) as client:
            heard = 0
            for at_ms in played:
                metadata = await say(client)
                if at_ms - heard >= metadata["audio_duration_ms"]:
                    return
                report = await interrupt(client, at_ms)
                assert report["text_spoken"] + report["text_remaining"] == TEXT
                spoken_ms = LETTER_MS * sum(map(str.isalpha, report["text_spoken"]))
                half_a_word = LETTER_MS * len("friend") / 2  # a word counts from its middle on
                pauses_ms = metadata["audio_duration_ms"] - LETTER_MS * sum(map(str.isalpha, TEXT))
                assert abs(spoken_ms - (at_ms - heard)) <= half_a_word + pauses_ms
                heard = at_ms

    asyncio.run(speak())


# -- configuration ----------------------------------------------------------------------------------------------------


async def test_speed_changes_while_a_turn_is_spoken() -> None:
    async with serving() as address, flux(address) as client:
        slow = (await say(client, "Hello there. Hello there."))["audio_duration_ms"]
        await client.send("Speak", text="Hello there. ")
        await client.send("Configure", speed=1.5)
        assert (await client.until("ConfigureSuccess"))["applied"] == {"speed": 1.5}
        ended = await say(client, "Hello there.")
        assert ended["input_character_count"] == len("Hello there. Hello there."), "it is still one turn"
        half = slow / 2
        assert half + half / 1.5 == pytest.approx(ended["audio_duration_ms"], rel=0.1)
        fast = (await say(client, "Hello there. Hello there."))["audio_duration_ms"]
        assert fast == pytest.approx(slow / 1.5, rel=0.1)
        assert kinds(client).count("SpeechStarted") == 3


async def test_report_covers_both_speeds() -> None:
    async with serving() as address, flux(address) as client:
        await client.send("Speak", text="Hello there. ")
        await client.send("Configure", speed=1.5)
        ended = await say(client, "Hello again.")
        report = await interrupt(client, ended["audio_duration_ms"] - 1)
        assert report["text_spoken"] + report["text_remaining"] == "Hello there. Hello again."
        assert report["text_spoken"].startswith("Hello there. Hello")


@pytest.mark.parametrize(
    ("speed", "code"), [(0.45, "SPEED_OUT_OF_RANGE"), (1.55, "SPEED_OUT_OF_RANGE"), (1.07, "SPEED_INCREMENT_INVALID")]
)
async def test_invalid_speed_is_refused_and_changes_nothing(speed: float, code: str) -> None:
    async with serving() as address, flux(address) as client:
        await client.send("Configure", speed=speed)
        failure = await client.until("ConfigureFailure")
        assert (failure["code"], failure["field"], failure["value"]) == (code, "speed", speed)
        await client.send("Configure")
        assert (await client.until("ConfigureSuccess"))["applied"] == {"speed": 1.0}


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no JSON", "MESSAGE-0000"),
        (json.dumps({"type": "Sing"}), "MESSAGE-0000"),
        (json.dumps({"type": "Interrupt", "playback_offset": {"type": "bytes", "value": 1}}), "MESSAGE-0000"),
        (json.dumps({"type": "Interrupt", "playback_offset": {"value": -1}}), "MESSAGE-0000"),
        (json.dumps({"type": "Speak", "text": "x" * 100_001}), "BIG-0000"),
    ],
)
async def test_error_ends_the_connection(message: str, code: str) -> None:
    async with serving() as address, flux(address) as client:
        await client.send("Speak", text=LONG)
        await client.socket.send(message)
        error = await client.until("Error")
        assert (error["code"], bool(error["description"])) == (code, True)
        await client.rest()
        await until_live_sessions(address, 0)


@pytest.mark.parametrize("query", ["&encoding=mp3", "&speed=2"])
async def test_handshake_is_denied_with_the_reason(query: str) -> None:
    async with serving() as address:
        with pytest.raises(InvalidStatus) as refused:
            async with flux(address, query):
                pass
        assert refused.value.response.status_code == 400
        assert refused.value.response.headers["dg-error"]
