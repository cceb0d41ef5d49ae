"""Telephone calls over real sockets: a call that plays in real time, an agent, and providers that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import serving
from tests.fakes.clock import measure_stalls
from tests.fakes.media_stream import CALLER_AUDIO, FakeCall, TelnyxMessages, TwilioMessages, calling
from tests.integration.test_websocket import Client, dial
from tts_worker.features.telephony import calls
from tts_worker.features.telephony.signature import twilio_signature

SHORT = "Hello."
LONG = "This sentence is long enough for a command before its end. " * 3
KEYS = {"server": {"api_keys": ["first-key", "second-key"]}}


@asynccontextmanager
async def agent(address: str, call: str, query: str = "", **options: Any) -> AsyncIterator[Client]:
    async with dial(address, f"/v1/calls/{call}{query}", **options) as client:
        await client.until("ready")
        yield client


async def ending(client: Client) -> tuple[dict[str, Any], int | None]:
    """Read until the worker closes. Returns its last message and the close code."""
    with pytest.raises(ConnectionClosed) as caught:
        await client.until_closed()
    last = next(item for item in reversed(client.log) if isinstance(item, dict))
    return last, caught.value.rcvd.code if caught.value.rcvd else None


async def settle(call: FakeCall, client: Client) -> None:
    """Return no more marks, and wait until the worker has received those that were returned."""
    call.returns_marks = False
    await asyncio.sleep(0)  # the last mark is sent by a task
    await call.send(call.messages.dtmf("9"))
    while (await client.until("dtmf"))["digit"] != "9":
        pass


async def reference(address: str, text: str) -> bytes:
    """The utterance as a download in the format of a call."""
    async with dial(address, "/v1/stream?realtime=false&encoding=mulaw") as client:
        await client.send(type="text", text=text, end=True)
        await client.until("done")
        return client.pcm


@pytest.mark.parametrize("messages", [TwilioMessages("CA1", name="Ada"), TelnyxMessages("v3:1/x+y=", name="Ada")])
async def test_documented_sequence_of_a_call(messages: TwilioMessages) -> None:
    async with (
        serving() as address,
        calling(address, messages) as call,
        agent(address, messages.call, "?caller_audio=true") as client,
    ):
        joined = await client.until("call")
        assert (joined["state"], joined["call"], joined["stream"]) == (
            "joined",
            call.messages.call,
            messages.stream,
        )
        assert joined["parameters"] == {"name": "Ada"}
        await call.send(messages.media())
        assert await client.until_audio() == CALLER_AUDIO
        await call.send(messages.dtmf("5"))
        assert (await client.until("dtmf"))["digit"] == "5"
        await client.send(type="text", text=SHORT, end=True)
        done = await client.until("done")
        assert done["samples_played"] == done["samples_sent"] == done["samples_generated"]
        assert done["text_spoken"] == SHORT
        expected = await reference(address, SHORT)
        assert len(expected) == done["samples_sent"]
        assert call.received == expected + b"\xff" * (-len(expected) % 160)
        await call.send(messages.stop())
        last, code = await ending(client)
        assert (last["type"], last["state"], last["reason"], code) == ("call", "ended", "stopped", 1000)


async def test_stop_clears_the_call_and_reports_its_marks() -> None:
    async with serving() as address, calling(address, TwilioMessages("CA1")) as call, agent(address, "CA1") as client:
        await client.send(type="text", text=LONG, end=True)
        await call.until(lambda: call.confirmed >= 4_000)
        await settle(call, client)
        async with measure_stalls() as stalled_s:
            stopped_at_s = asyncio.get_running_loop().time()
            await client.send(type="stop")
            await call.until(lambda: call.cleared)
            assert call.cleared[0][1] - stopped_at_s - stalled_s() < 0.05
        stopped = await client.until("stopped")
        assert stopped["samples_played"] == call.confirmed < stopped["samples_sent"]
        assert stopped["samples_sent"] - call.confirmed < 0.5 * 8_000, "the lead is small"
        assert stopped["text_spoken"] + stopped["text_remaining"] == LONG
        assert 0 < len(stopped["text_spoken"]) < len(LONG)
        call.returns_marks = True
        received = len(call.received)
        await client.send(type="text", text=SHORT, end=True)
        assert (await client.until("done"))["samples_played"] == len(await reference(address, SHORT))
        assert call.received[received:].startswith(await reference(address, SHORT)), "audio of the stopped utterance"


async def test_pause_clears_and_resume_sends_the_rest_again() -> None:
    text = LONG[:24]
    async with serving() as address, calling(address, TwilioMessages("CA1")) as call, agent(address, "CA1") as client:
        expected = await reference(address, text)
        await client.send(type="text", text=text, end=True)
        await call.until(lambda: call.confirmed >= 4_000)
        await settle(call, client)
        position = call.confirmed
        await client.send(type="pause")
        assert (await client.until("paused"))["applied"]
        await client.send(type="ping", id=1)
        await client.until("pong")
        cut = len(call.received)
        assert [size for size, _ in call.cleared] == [cut]
        call.returns_marks = True
        await client.send(type="resume")
        done = await client.until("done")
        assert call.received[:cut] == expected[:cut]
        assert call.received[cut:].rstrip(b"\xff") == expected[position:].rstrip(b"\xff")
        assert done["samples_played"] == len(expected)


async def test_pause_after_the_last_frame_is_a_pause() -> None:
    async with serving() as address, calling(address, TwilioMessages("CA1")) as call, agent(address, "CA1") as client:
        expected = await reference(address, "Hi")
        call.returns_marks = False
        await client.send(type="text", text="Hi", end=True)  # shorter than the lead: all of it is sent at once
        await call.until(lambda: len(call.received) >= len(expected))
        await client.send(type="pause")
        assert (await client.until("paused"))["applied"]
        call.returns_marks = True
        await client.send(type="resume")
        assert (await client.until("done"))["samples_played"] == len(expected)
        assert call.received.count(expected) == 2


async def test_call_without_marks_is_confirmed_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.features.telephony.playback.MARK_TIMEOUT_S", 0.05)
    async with serving() as address, calling(address, TwilioMessages("CA1")) as call, agent(address, "CA1") as client:
        call.returns_marks = False
        for _ in range(2):
            await client.send(type="text", text=SHORT, end=True)
            done = await client.until("done")
            assert done["samples_played"] == done["samples_sent"] == len(await reference(address, SHORT))


async def test_late_mark_does_not_count_for_the_next_utterance() -> None:
    """The agent may report itself that an utterance was played, before its marks come back."""
    async with serving() as address, calling(address, TwilioMessages("CA1")) as call, agent(address, "CA1") as client:
        samples = len(await reference(address, SHORT))
        call.returns_marks = False
        await client.send(type="text", text=SHORT, end=True)
        await client.send(type="text", text=LONG, end=True)
        await call.until(lambda: len(call.received) >= samples)
        marks = list(call.marks)
        await client.send(type="played", samples=samples)
        await client.until("done")
        await call.until(lambda: len(call.received) > 2 * samples)
        await call.send(call.messages.mark(marks[-1]))
        await settle(call, client)
        await client.send(type="stop")
        stopped = await client.until("stopped")
        assert stopped["samples_played"] == 0 < stopped["samples_sent"]


async def test_agent_may_come_first_and_come_back() -> None:
    async with serving() as address, agent(address, "named") as client:
        await client.send(type="text", text=LONG, end=True)
        await client.until("started")  # synthesized, not played
        async with calling(address, TwilioMessages("CA1", call="named")) as call:
            await call.until(lambda: call.confirmed >= 1_000)
            client.socket.transport.abort()
            await call.until(lambda: call.cleared)
            async with agent(address, "named") as successor:
                assert (await successor.until("call"))["state"] == "joined"
                await successor.send(type="text", text=SHORT, end=True)
                await successor.until("done")
                await successor.send(type="close")
                await call.socket.wait_closed()
                assert call.socket.close_code == 1000


async def test_those_who_wait_in_vain_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "JOIN_TIMEOUT_S", 0.05)
    async with serving() as address:
        async with agent(address, "CA1") as client:
            await client.send(type="text", text=SHORT, end=True)
            last, code = await ending(client)
            assert (last["reason"], code) == ("no_call", 1013)
            report = next(m for m in client.log if isinstance(m, dict) and m["type"] == "stopped")
            assert (report["reason"], report["text_remaining"], report["samples_sent"]) == ("call_ended", SHORT, 0)
        async with calling(address, TwilioMessages("CA2")) as call:
            await call.socket.wait_closed()
            assert call.socket.close_code == 1000, "the provider goes on with its next instruction"


async def test_lost_call_ends_the_agent_with_a_report() -> None:
    async with serving() as address, agent(address, "CA1") as client:
        async with calling(address, TwilioMessages("CA1")) as call:
            await client.send(type="text", text=LONG, end=True)
            await call.until(lambda: call.confirmed >= 1_000)
            await settle(call, client)
            call.socket.transport.abort()
            last, code = await ending(client)
        assert (last["reason"], code) == ("disconnected", 1000)
        report = next(m for m in client.log if isinstance(m, dict) and m["type"] == "stopped")
        assert (report["reason"], report["samples_played"]) == ("call_ended", call.confirmed)
        assert report["text_spoken"] + report["text_remaining"] == LONG


HOSTILE: dict[str, tuple[list[Any], int]] = {
    "no JSON": (["{"], 1007),
    "binary": ([b"{}"], 1007),
    "no event": ([{}], 1007),
    "media before start": ([{"event": "media", "media": {"payload": "AA=="}}], 1007),
    "start without a call": ([{"event": "start", "start": {"streamSid": "MZ"}}], 1007),
    "start of a connected call": ([TwilioMessages("CA1").start()], 1007),
    "endless name": ([TwilioMessages("CA9", call="x" * 200).start()], 1007),
    "name with a line feed": ([TwilioMessages("CA9\nCA8").start()], 1007),
    "huge message": (["x" * 1_100_000], 1009),
}
HOSTILE_CALLS: dict[str, Any] = {
    "start twice": TwilioMessages("CA2").start(),
    "no base64": {"event": "media", "media": {"payload": "%%%"}},
    "mark without a name": {"event": "mark", "mark": {}},
    "digit of many characters": {"event": "dtmf", "dtmf": {"digit": "123"}},
    "media without payload": {"event": "media"},
}


async def test_hostile_streams_get_a_close_code_and_harm_no_call() -> None:
    async with serving() as address, calling(address, TwilioMessages("CA1")) as call, agent(address, "CA1") as client:
        for name, (sent, expected) in HOSTILE.items():
            async with connect(f"ws://{address}/twilio", compression=None) as socket:
                for message in sent:
                    await socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
                await socket.wait_closed()
                assert socket.close_code == expected, name
                assert expected != 1007 or socket.close_reason, name
        for name, message in HOSTILE_CALLS.items():
            other = TwilioMessages("CA2")
            async with calling(address, other) as bad, agent(address, "CA2") as victim:
                await victim.until("call")
                await bad.send(message)
                last, code = await ending(victim)
                assert (last["reason"], code) == ("invalid_request", 1000), name
                await bad.socket.wait_closed()
                assert bad.socket.close_code == 1007, name
        await call.send(call.messages.message("new event", field={}))  # providers may add some
        await call.send(call.messages.mark("foreign"))
        await client.send(type="text", text="Hi", end=True)
        assert (await client.until("done"))["text_spoken"] == "Hi"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?sample_rate=24000", 400),
        ("?realtime=false", 400),
        ("?voice=unknown", 404),
        ("?lead_ms=-1", 400),
        ("?caller_audio=maybe", 400),
    ],
)
async def test_agent_with_invalid_options_is_rejected(query: str, status: int) -> None:
    async with serving() as address:
        with pytest.raises(InvalidStatus) as caught:
            async with agent(address, "CA1", query):
                pass
        assert caught.value.response.status_code == status
        async with agent(address, "CA1") as client:  # the name is free
            await client.send(type="start", sample_rate=24_000)
            assert (await client.until("rejected"))["code"] == "invalid_request"
            with pytest.raises(InvalidStatus) as caught:
                async with agent(address, "CA1"):
                    pass
            assert caught.value.response.status_code == 409


async def test_stream_needs_the_key_of_its_agent() -> None:
    first, second = ({"additional_headers": {"X-API-Key": key}} for key in ("first-key", "second-key"))
    async with serving(**KEYS) as address:
        for parameters in ({}, {"key": "wrong-key"}):
            async with calling(address, TwilioMessages("CA1", **parameters)) as call:
                await call.socket.wait_closed()
                assert call.socket.close_code == 1008
        async with calling(address, TwilioMessages("CA1", key="first-key")) as call:
            async with agent(address, "CA1", **first) as client:
                assert "first-key" not in str(await client.until("call"))
            with pytest.raises(InvalidStatus) as caught:
                async with agent(address, "CA1", **second):
                    pass
            assert caught.value.response.status_code == 403
            assert call.socket.close_code is None
        waiting = agent(address, "CA2", **second)
        async with waiting as client, calling(address, TwilioMessages("CA2", key="first-key")):
            assert (await ending(client))[0]["reason"] == "forbidden"
        with pytest.raises(InvalidStatus) as caught:
            async with agent(address, "CA1"):
                pass
        assert caught.value.response.status_code == 401


@pytest.mark.parametrize(
    ("public_url", "url", "status"),
    [
        (None, "wss://voice.example.com/twilio", None),
        ("wss://voice.example.com/tts", "wss://voice.example.com/tts/twilio", None),
        ("wss://voice.example.com:443", "wss://voice.example.com/twilio/", None),
        (None, "wss://other.example.com/twilio", 401),
    ],
)
async def test_signature_of_twilio_is_verified(public_url: str | None, url: str, status: int | None) -> None:
    token = "0123456789abcdef"
    headers = {"X-Twilio-Signature": twilio_signature(url, token).decode()}
    async with serving(telephony={"twilio_auth_token": token, "public_url": public_url}) as address:
        host, _, port = address.partition(":")
        to = {"host": host, "port": int(port)}
        if status is None:
            call = calling("voice.example.com", TwilioMessages("CA1"), additional_headers=headers, **to)
            async with call, agent(address, "CA1") as client:
                assert (await client.until("call"))["state"] == "joined"
            return
        for sent in (headers, {}):
            with pytest.raises(InvalidStatus) as caught:
                async with calling("voice.example.com", TwilioMessages("CA1"), additional_headers=sent, **to):
                    pass
            assert caught.value.response.status_code == status


async def test_token_of_telnyx_is_verified() -> None:
    async with serving(telephony={"telnyx_auth_token": "0123456789abcdef"}) as address:
        good, bad = ({"x-telnyx-streaming-auth-token": token} for token in ("0123456789abcdef", "0123"))
        async with calling(address, TelnyxMessages("1"), additional_headers=good), agent(address, "1") as client:
            assert (await client.until("call"))["provider"] == "telnyx"
        with pytest.raises(InvalidStatus):
            async with calling(address, TelnyxMessages("1"), additional_headers=bad):
                pass


def test_signature_is_that_of_the_documentation() -> None:
    # HMAC-SHA1 of the address, computed with: printf %s URL | openssl dgst -sha1 -hmac TOKEN -binary | base64
    assert twilio_signature("wss://voice.example.com/twilio", "12345") == b"/9CePW9ateVCsfEI0ovxcY95674="
