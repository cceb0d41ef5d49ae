"""WebRTC over real sockets, aiortc on both ends: a turn, control, bad networks, bad offers, peers that vanish."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

from tests.conftest import serving
from tests.integration.test_websocket import metric, until_live_sessions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("aiortc", reason='needs the extra "webrtc"')
    from tests.integration.listener import bad_network, listening, offered, unconnected

TEXT = "Hello there, my friend. How are you today?"
LONG = "This is a rather long story, and it goes on and on. " * 20
SOUND_S = 0.06 * len("".join(TEXT.split()))  # the tone engine: 60 ms a character
END_FRAMES = 10
"""So long a silence is the end of what was said: between sentences there are 6 frames of it."""


def pitch_hz(sound: np.ndarray[Any, Any]) -> float:
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(len(sound))))
    return float(np.argmax(spectrum) * 48_000 / len(sound))


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with serving() as listening_on:
        yield listening_on


# -- what must work ---------------------------------------------------------------------------------------------------


async def test_a_turn_is_heard_and_told_like_on_every_other_way(address: str) -> None:
    async with listening(address, voice="tone-high") as listener:
        assert listener.log[0]["voice"] == "tone-high"
        for piece in ("Hello there, my fr", "iend. How are ", "you today?"):
            listener.send(type="text", text=piece, context="turn")
        listener.send(type="end", context="turn")
        done = await listener.told("done")
        assert (done["text_spoken"], done["text_remaining"], done["context"]) == (TEXT, "", "turn")
        assert done["samples_sent"] == round(24_000 * SOUND_S)
        words = [word["text"] for message in listener.of("words") for word in message["words"]]
        assert words == TEXT.split()
        await listener.until(lambda: any(listener.loud) and not any(listener.loud[-END_FRAMES:]))
        assert sum(listener.loud) * 0.02 == pytest.approx(SOUND_S, abs=0.3)
        loud = [frame for frame, loud in zip(listener.frames, listener.loud, strict=True) if loud]
        async with listening(address, voice="tone-low") as other:
            other.send(type="text", text=TEXT, end=True)
            await other.until(lambda: sum(other.loud) > 20)
            low = [frame for frame, loud in zip(other.frames, other.loud, strict=True) if loud]
        assert pitch_hz(np.concatenate(loud[2:18])) > 1.2 * pitch_hz(np.concatenate(low[2:18]))
    await until_live_sessions(address, 0)


async def test_pause_resume_stop_and_the_next_turn_on_one_track(address: str) -> None:
    async with listening(address) as listener:
        listener.send(type="text", text=LONG, end=True)
        await listener.until(lambda: sum(listener.loud) > 10)
        listener.send(type="pause")
        paused = await listener.told("paused")
        assert paused["applied"]
        known = len(listener.frames)  # what was sent before is heard first, however long that takes
        await listener.until(lambda: len(listener.frames) > known + 25 and not any(listener.loud[-END_FRAMES:]))
        quiet = len(listener.frames)
        await listener.until(lambda: len(listener.frames) > quiet + 10)
        assert not any(listener.loud[quiet:]), "silence goes on, so the time stamps do"
        listener.send(type="resume")
        await listener.told("resumed")
        await listener.until(lambda: sum(listener.loud[quiet:]) > 5)
        listener.send(type="stop", played_samples=4_800, reason="barge-in")
        stopped = await listener.told("stopped")
        assert (stopped["reason"], stopped["samples_played"]) == ("barge-in", 4_800)
        assert stopped["text_spoken"] + stopped["text_remaining"] == LONG
        listener.send(type="text", text="Yes.", end=True)
        await listener.told("done")
        steps = np.diff(listener.stamps)
        assert (steps > 0).all(), "through the flush and the pause"
        assert (steps % 960 == 0).all()  # a machine that is too busy gives frames up, but not their time
        listener.send(type="ping", id=7)
        assert (await listener.told("pong"))["id"] == 7
        listener.send(type="close")
        await until_live_sessions(address, 0)


async def test_a_pause_is_acknowledged_however_much_waits_to_be_played(address: str) -> None:
    async with listening(address) as listener:
        listener.send(type="text", text=LONG, end=True)
        for count in range(1, 4):
            heard = len(listener.frames)
            await listener.until(lambda: any(listener.loud[heard:]))  # noqa: B023
            for _ in range(3):
                listener.send(type="ping")  # whatever is said, the worker looks for sound as well
            listener.send(type="pause")
            assert (await listener.told("paused", count))["applied"]
            listener.send(type="resume")
            assert (await listener.told("resumed", count))["applied"]


async def test_a_stop_is_silence_at_the_ear_after_little_more_than_the_jitter_buffer(address: str) -> None:
    """Counted in frames of 20 ms, by what had arrived at the listener: the rest is his own buffer. The answer to a ping
    that goes before the STOP says when the worker heard of both, however long they took to him."""
    async with listening(address) as listener:
        arrived: dict[str, int] = {}  # packets of sound before the last message of that kind
        listener.on_message = lambda raw: arrived.update({json.loads(raw)["type"]: listener.arrived})
        for turn in range(3):
            before = len(listener.frames)
            listener.send(type="text", text=LONG, end=True)
            await listener.until(lambda: sum(listener.loud[before:]) > 10)  # noqa: B023
            listener.send(type="ping")
            listener.send(type="stop")
            await listener.told("stopped", turn + 1)
            await listener.until(lambda: len(listener.frames) > arrived["stopped"] + 25)
            assert sum(listener.loud[arrived["pong"] :]) <= 8
            # What left after the answer: sound fades within 5 ms, and the codec's memory of it rings in the next frame.
            assert sum(listener.loud[arrived["stopped"] :]) <= 2


async def test_a_start_on_the_channel_changes_the_voice_and_bad_messages_are_answered(address: str) -> None:
    async with listening(address) as listener:
        listener.send(type="start", voice="tone-low", lead_ms=5_000, frame_ms=100)
        assert (await listener.told("ready", 2))["voice"] == "tone-low"
        for raw in ("not JSON", "[]", '{"type": "dance"}', '{"type": "text"}', b"\0\1"):
            listener.channel.send(raw)
        assert (await listener.told("rejected", 5))["code"] == "invalid_request"
        listener.send(type="start", voice="nobody")
        assert (await listener.told("rejected", 6))["code"] == "unknown_voice"
        began_s = asyncio.get_running_loop().time()
        listener.send(type="text", text=TEXT, end=True, tomorrow=1)
        assert (await listener.told("started"))["voice"] == "tone-low"
        await listener.told("done")
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s > 0.9 * SOUND_S, "at the pace of playback, whatever was asked for"


async def test_lone_surrogates_leave_the_peer_usable(address: str) -> None:
    half = "\ud83d"
    async with listening(address) as listener:
        listener.send(type="ping", id=half)
        listener.send(type="text", text="Hello.", context=half)
        listener.send(type=half)
        assert (await listener.told("rejected", 3))["code"] == "invalid_request"
        listener.send(type="text", text=f"Hello {half}there.", end=True)
        assert (await listener.told("done"))["text_remaining"] == ""


async def test_flood_of_messages_ends_the_peer() -> None:
    async with serving(session={"max_messages_per_s": 10}) as address, listening(address) as listener:
        for _ in range(200):
            listener.send(type="flush")
        assert (await listener.told("rejected"))["code"] == "rate_limited"
        await until_live_sessions(address, 0)


async def test_deltas_of_one_byte_and_a_receipt_that_is_too_long_for_a_message(address: str) -> None:
    text = ("word " * 40_000)[:200_000]
    async with listening(address) as listener:
        for character in text[:1_000]:
            listener.send(type="text", text=character)
        for place in range(1_000, len(text), 10_000):
            listener.send(type="text", text=text[place : place + 10_000])
        await listener.told("started")
        await listener.until(lambda: any(listener.loud))
        listener.send(type="ping", id=1)
        await listener.told("pong")
        listener.send(type="stop")
        stopped = await listener.told("stopped")
        assert stopped["text_omitted"]
        assert stopped["spoken_chars"] + stopped["remaining_chars"] == len(text)


# -- networks ---------------------------------------------------------------------------------------------------------


async def test_speech_survives_loss_and_jitter(address: str) -> None:
    async with listening(address) as listener:
        # With this seed aiortc's jitter buffer gives up a quarter at the worst, wherever in the losses speech begins.
        bad_network(listener, loss=0.05, late_packets=2, seed=12)
        listener.send(type="text", text=TEXT, end=True)
        await listener.told("done")
        await listener.until(lambda: any(listener.loud) and not any(listener.loud[-15:]))
        assert sum(listener.loud) * 0.02 > 0.6 * SOUND_S
        heard = len(listener.frames)
        steps = np.diff(listener.stamps)
        assert (steps > 0).all()
        assert (steps % 960 == 0).all()
        listener.send(type="text", text=LONG)
        await listener.until(lambda: sum(listener.loud[heard:]) > 10)
        listener.send(type="stop")
        await listener.told("stopped")


async def test_a_client_that_closes_frees_its_session_and_may_come_again(address: str) -> None:
    for _ in range(2):
        async with listening(address) as listener:
            listener.send(type="text", text=LONG, end=True)
            await listener.until(lambda: any(listener.loud))
            assert await metric(address, "tts_sessions") == 1
        await until_live_sessions(address, 0)


async def test_a_client_that_vanishes_frees_its_session() -> None:
    async with serving(webrtc={"silence_timeout_s": 2}) as address, listening(address) as listener:
        transport = listener.connection.getReceivers()[0].transport.transport
        await transport._connection.close()  # its sockets are gone, and it says nothing
        await until_live_sessions(address, 0)


async def test_a_peer_that_has_not_connected_yet_has_a_place() -> None:
    async with serving(webrtc={"connect_timeout_s": 600, "max_peers": 1}) as address, unconnected() as listener:
        sdp = await listener.offer()
        answer = await offered(address, sdp)
        assert answer.status_code == 200
        refused = await offered(address, sdp)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "over_capacity")
        assert refused.headers["retry-after"] == "1"
        assert await metric(address, "tts_sessions") == 1
        await listener.accept(answer.json()["sdp"])
        await listener.told("ready")


async def test_a_peer_that_never_connects_is_ended_and_its_place_is_free() -> None:
    # Nobody connects here: in so short a time a busy machine might not.
    async with serving(webrtc={"connect_timeout_s": 0.3, "max_peers": 1}) as address, unconnected() as listener:
        sdp = await listener.offer()
        assert (await offered(address, sdp)).status_code == 200
        await until_live_sessions(address, 0)
        with anyio.fail_after(60):  # its sockets are closed before its place is free
            while (again := await offered(address, sdp)).status_code == 503:
                pass
        assert again.status_code == 200
        await until_live_sessions(address, 0)


# -- offers that cannot be answered -----------------------------------------------------------------------------------


@asynccontextmanager
async def real_offer() -> AsyncIterator[str]:
    async with unconnected() as listener:
        yield await listener.offer()


async def test_offers_that_cannot_be_answered_are_422_and_hold_nothing(address: str) -> None:
    async with real_offer() as sdp:
        lines = sdp.splitlines(keepends=True)
        audio_only = sdp[: sdp.index("m=application")].replace("BUNDLE 0 1", "BUNDLE 0")
        bad = {
            "empty": "",
            "garbage": "\0\1garbage" * 100,
            "half": sdp[: len(sdp) // 2],
            "no fingerprint": "".join(line for line in lines if "fingerprint" not in line),
            "no ICE": "".join(line for line in lines if "ice-" not in line),
            "no data channel": audio_only,
            "sends and takes nothing": sdp.replace("a=recvonly", "a=sendonly"),
            "no Opus": sdp.replace("opus/48000/2", "speex/48000/2").replace("PCM", "XXX"),
            "shuffled": "".join(reversed(lines)),
        }
        for name, offer in bad.items():
            answer = await offered(address, offer)
            assert answer.status_code == 422, name
            assert answer.json()["error"]["code"] == "invalid_request"
        assert await metric(address, "tts_sessions") == 0
        assert (await offered(address, sdp, voice="nobody")).status_code == 404
        assert (await offered(address, sdp, speed="fast")).status_code == 422
        assert await metric(address, "tts_sessions") == 0


async def test_bodies_that_are_no_offer(address: str) -> None:
    import httpx

    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        for body in ("", "[]", "{}", '{"sdp": "x"}', '{"sdp": "x", "type": "answer"}', '{"sdp": 1, "type": "offer"}'):
            assert (await http.post("/webrtc/offer", content=body)).status_code == 422
        large = json.dumps({"sdp": "x" * 2_000_000, "type": "offer"})
        assert (await http.post("/webrtc/offer", content=large)).status_code == 413


async def test_keys_and_switch() -> None:
    async with serving(server={"api_keys": ["a-long-secret"]}) as address, real_offer() as sdp:
        assert (await offered(address, sdp)).status_code == 401
    async with serving(webrtc={"enabled": False}) as address, real_offer() as sdp:
        assert (await offered(address, sdp)).status_code == 404


async def test_without_the_extra_the_answer_names_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from tts_worker import transports

    for module in ("webrtc_peer", "webrtc_track"):
        monkeypatch.delitem(sys.modules, f"tts_worker.transports.{module}", raising=False)
        monkeypatch.delattr(transports, module, raising=False)
    monkeypatch.setitem(sys.modules, "aiortc", None)
    async with serving() as other, real_offer() as sdp:
        answer = await offered(other, sdp)
        assert answer.status_code == 501
        assert 'pip install ".[webrtc]"' in answer.json()["error"]["message"]
