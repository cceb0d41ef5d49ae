"""WebRTC over real sockets with aiortc: utterances, control, packet loss, invalid offers, vanished peers."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

from tests.behavior.control import check_stops
from tests.conftest import serving, tone_settings, until
from tests.integration.test_websocket import metric, until_live_sessions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("aiortc", reason='needs the extra "webrtc"')
    from aiortc import RTCCertificate, RTCPeerConnection, RTCSessionDescription

    from tests.features.webrtc.webrtc_client import connected_client, impair_network, post_offer, unconnected_client
    from tts_worker.features.webrtc import peer

from tts_worker.features.webrtc.offers import Offer, PeerRegistry
from tts_worker.features.webrtc.settings import WebRtcSettings
from tts_worker.server.limits import ApiLimits
from tts_worker.worker import running_worker

TEXT = "Hello there, my friend. How are you today?"
LONG = "This is a rather long story, and it goes on and on. " * 20
AUDIO_S = 0.06 * len("".join(TEXT.split()))  # the tone engine: 60 ms a character
END_FRAMES = 10
"""Silent frames that mark the end of the speech; between sentences there are 6."""


def pitch_hz(audio: np.ndarray[Any, Any]) -> float:
    spectrum = np.abs(np.fft.rfft(audio * np.hanning(len(audio))))
    return float(np.argmax(spectrum) * 48_000 / len(audio))


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with serving() as server_address:
        yield server_address


# -- utterances and control -------------------------------------------------------------------------------------------


async def test_utterance_audio_and_events(address: str) -> None:
    async with connected_client(address, voice="tone-high") as client:
        assert client.log[0]["voice"] == "tone-high"
        for piece in ("Hello there, my fr", "iend. How are ", "you today?"):
            client.send(type="text", text=piece, context="turn")
        client.send(type="end", context="turn")
        done = await client.until_message("done")
        assert (done["text_spoken"], done["text_remaining"], done["context"]) == (TEXT, "", "turn")
        assert done["samples_sent"] == round(24_000 * AUDIO_S)
        words = [word["text"] for message in client.messages("words") for word in message["words"]]
        assert words == TEXT.split()
        await client.until(lambda: any(client.audible) and not any(client.audible[-END_FRAMES:]))
        assert sum(client.audible) * 0.02 == pytest.approx(AUDIO_S, abs=0.3)
        loud = [frame for frame, loud in zip(client.frames, client.audible, strict=True) if loud]
        async with connected_client(address, voice="tone-low") as other:
            other.send(type="text", text=TEXT, end=True)
            await other.until(lambda: sum(other.audible) > 20)
            low = [frame for frame, loud in zip(other.frames, other.audible, strict=True) if loud]
        assert pitch_hz(np.concatenate(loud[2:18])) > 1.2 * pitch_hz(np.concatenate(low[2:18]))
    await until_live_sessions(address, 0)


async def test_pause_resume_stop_and_next_utterance(address: str) -> None:
    async with connected_client(address) as client:
        client.send(type="text", text=LONG, end=True)
        await client.until(lambda: sum(client.audible) > 10)
        client.send(type="pause")
        paused = await client.until_message("paused")
        assert paused["applied"]
        known = len(client.frames)  # frames sent before the pause arrive first
        await client.until(lambda: len(client.frames) > known + 25 and not any(client.audible[-END_FRAMES:]))
        quiet = len(client.frames)
        await client.until(lambda: len(client.frames) > quiet + 10)
        assert not any(client.audible[quiet:]), "silence continues during the pause"
        client.send(type="resume")
        await client.until_message("resumed")
        await client.until(lambda: sum(client.audible[quiet:]) > 5)
        client.send(type="stop", played_samples=4_800, reason="barge-in")
        stopped = await client.until_message("stopped")
        assert (stopped["reason"], stopped["samples_played"]) == ("barge-in", 4_800)
        assert stopped["text_spoken"] + stopped["text_remaining"] == LONG
        client.send(type="text", text="Yes.", end=True)
        await client.until_message("done")
        steps = np.diff(client.timestamps)
        assert (steps > 0).all(), "through the flush and the pause"
        assert (steps % 960 == 0).all()  # an overloaded sender skips frames together with their time
        client.send(type="ping", id=7)
        assert (await client.until_message("pong"))["id"] == 7
        client.send(type="close")
        await until_live_sessions(address, 0)


async def test_pause_is_acknowledged_with_full_playout(address: str) -> None:
    async with connected_client(address) as client:
        client.send(type="text", text=LONG, end=True)
        for count in range(1, 4):
            received = len(client.frames)
            await client.until(lambda: any(client.audible[received:]))  # noqa: B023
            for _ in range(3):
                client.send(type="ping")  # handling a message also refills the playout
            client.send(type="pause")
            assert (await client.until_message("paused", count))["applied"]
            client.send(type="resume")
            assert (await client.until_message("resumed", count))["applied"]


async def test_stop_is_answered_within_50_ms(address: str) -> None:
    async with connected_client(address) as client:

        async def begin() -> int:
            before = len(client.frames)
            client.send(type="text", text=LONG, end=True)
            await client.until(lambda: sum(client.audible[before:]) > 5)
            return len(client.messages("stopped")) + 1

        async def stop(count: int) -> None:
            client.send(type="stop")
            await client.until_message("stopped", count)

        await check_stops(begin, stop)


async def test_stop_leaves_only_the_jitter_buffer(address: str) -> None:
    """Counted in frames of 20 ms that arrived at the client, which excludes its own jitter buffer.

    The pong to a ping sent before the STOP marks when the worker received both, independent of the network delay.
    """
    async with connected_client(address) as client:
        arrived: dict[str, int] = {}  # audio packets received before the last message of each type
        client.on_message = lambda raw: arrived.update({json.loads(raw)["type"]: client.arrived_packets})
        for turn in range(3):
            before = len(client.frames)
            client.send(type="text", text=LONG, end=True)
            await client.until(lambda: sum(client.audible[before:]) > 10)  # noqa: B023
            client.send(type="ping")
            client.send(type="stop")
            await client.until_message("stopped", turn + 1)
            await client.until(lambda: len(client.frames) > arrived["stopped"] + 25)
            assert sum(client.audible[arrived["pong"] :]) <= 8
            # Frames sent after the acknowledgement: the fade of 5 ms, and the decay of the codec's state in the next.
            assert sum(client.audible[arrived["stopped"] :]) <= 2


async def test_start_changes_voice_and_bad_messages_are_rejected(address: str) -> None:
    async with connected_client(address) as client:
        client.send(type="start", voice="tone-low", lead_ms=5_000, frame_ms=100)
        assert (await client.until_message("ready", 2))["voice"] == "tone-low"
        for raw in ("not JSON", "[]", '{"type": "dance"}', '{"type": "text"}', b"\0\1"):
            client.channel.send(raw)
        assert (await client.until_message("rejected", 5))["code"] == "invalid_request"
        client.send(type="start", voice="unknown")
        assert (await client.until_message("rejected", 6))["code"] == "unknown_voice"
        start_s = asyncio.get_running_loop().time()
        client.send(type="text", text=TEXT, end=True, unknown_field=1)
        assert (await client.until_message("started"))["voice"] == "tone-low"
        await client.until_message("done")
        elapsed_s = asyncio.get_running_loop().time() - start_s
        assert elapsed_s > 0.9 * AUDIO_S, "paced in real time, although lead_ms asks for more"


async def test_lone_surrogates_leave_the_peer_usable(address: str) -> None:
    surrogate = "\ud83d"
    async with connected_client(address) as client:
        client.send(type="ping", id=surrogate)
        client.send(type="text", text="Hello.", context=surrogate)
        client.send(type=surrogate)
        assert (await client.until_message("rejected", 3))["code"] == "invalid_request"
        client.send(type="text", text=f"Hello {surrogate}there.", end=True)
        assert (await client.until_message("done"))["text_remaining"] == ""


async def test_flood_of_messages_ends_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApiLimits, "of", lambda settings: ApiLimits(max_messages_per_s=10))
    async with serving() as address, connected_client(address) as client:
        for _ in range(200):
            client.send(type="flush")
        assert (await client.until_message("rejected"))["code"] == "rate_limited"
        await until_live_sessions(address, 0)


async def test_long_playback_report_omits_its_texts(address: str) -> None:
    text = ("word " * 40_000)[:200_000]
    async with connected_client(address) as client:
        for character in text[:1_000]:
            client.send(type="text", text=character)
        for place in range(1_000, len(text), 10_000):
            client.send(type="text", text=text[place : place + 10_000])
        await client.until_message("started")
        await client.until(lambda: any(client.audible))
        client.send(type="ping", id=1)
        await client.until_message("pong")
        client.send(type="stop")
        stopped = await client.until_message("stopped")
        assert stopped["text_omitted"]
        assert stopped["spoken_chars"] + stopped["remaining_chars"] == len(text)


# -- networks ---------------------------------------------------------------------------------------------------------


async def test_speech_survives_loss_and_jitter(address: str) -> None:
    async with connected_client(address) as client:
        # With this seed aiortc's jitter buffer drops at most a quarter, wherever in the loss pattern the speech starts.
        impair_network(client, loss=0.05, late_packets=2, seed=12)
        client.send(type="text", text=TEXT, end=True)
        await client.until_message("done")
        await client.until(lambda: any(client.audible) and not any(client.audible[-15:]))
        assert sum(client.audible) * 0.02 > 0.6 * AUDIO_S
        received = len(client.frames)
        steps = np.diff(client.timestamps)
        assert (steps > 0).all()
        assert (steps % 960 == 0).all()
        client.send(type="text", text=LONG)
        await client.until(lambda: sum(client.audible[received:]) > 10)
        client.send(type="stop")
        await client.until_message("stopped")


async def test_closing_client_frees_its_session(address: str) -> None:
    for _ in range(2):
        async with connected_client(address) as client:
            client.send(type="text", text=LONG, end=True)
            await client.until(lambda: any(client.audible))
            assert await metric(address, "tts_sessions") == 1
        await until_live_sessions(address, 0)


async def test_vanished_client_frees_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "SILENCE_TIMEOUT_S", 2.0)
    async with serving() as address, connected_client(address) as client:
        transport = client.connection.getReceivers()[0].transport.transport
        await transport._connection.close()  # closes the sockets without a message
        await until_live_sessions(address, 0)


async def test_unconnected_peer_counts_against_max_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "CONNECT_TIMEOUT_S", 600.0)
    async with serving(webrtc={"max_peers": 1}) as address, unconnected_client() as client:
        sdp = await client.offer()
        answer = await post_offer(address, sdp)
        assert answer.status_code == 200
        rejection = await post_offer(address, sdp)
        assert (rejection.status_code, rejection.json()["error"]["code"]) == (503, "over_capacity")
        assert rejection.headers["retry-after"] == "1"
        assert await metric(address, "tts_sessions") == 1
        await client.accept(answer.json()["sdp"])
        await client.until_message("ready")


async def test_peer_that_never_connects_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "CONNECT_TIMEOUT_S", 0.3)
    # No client connects in this test: on a busy machine it might not within this timeout.
    async with serving(webrtc={"max_peers": 1}) as address, unconnected_client() as client:
        sdp = await client.offer()
        assert (await post_offer(address, sdp)).status_code == 200
        await until_live_sessions(address, 0)
        with anyio.fail_after(60):  # the sockets are closed before the slot is free
            while (again := await post_offer(address, sdp)).status_code == 503:
                pass
        assert again.status_code == 200
        await until_live_sessions(address, 0)


async def test_offers_are_negotiated_one_at_a_time(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    negotiating: list[int] = []
    running = 0

    class CountedConnection(RTCPeerConnection):
        async def setRemoteDescription(self, description: RTCSessionDescription) -> None:
            nonlocal running
            running += 1
            negotiating.append(running)
            await super().setRemoteDescription(description)

        async def setLocalDescription(self, description: RTCSessionDescription) -> None:
            nonlocal running
            await super().setLocalDescription(description)
            running -= 1

    monkeypatch.setattr("tts_worker.features.webrtc.peer.RTCPeerConnection", CountedConnection)
    async with unconnected_client() as client:
        sdp = await client.offer()
        answers = await asyncio.gather(*(post_offer(address, sdp) for _ in range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert negotiating == [1] * 8


async def test_key_of_a_peer_is_made_on_a_thread(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elliptic curves take their time, and the loop has the audio of all calls to send."""
    generate = RTCCertificate.generateCertificate
    threads = []

    def generate_certificate() -> RTCCertificate:
        threads.append(threading.current_thread())
        return generate()

    async with unconnected_client() as client:
        sdp = await client.offer()
        monkeypatch.setattr(RTCCertificate, "generateCertificate", generate_certificate)
        assert (await post_offer(address, sdp)).status_code == 200
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


async def test_offer_that_is_given_up_while_it_waits_leaves_nothing() -> None:
    async with running_worker(tone_settings()) as worker:
        registry = PeerRegistry(worker.hub, WebRtcSettings(), ApiLimits())
        async with registry.negotiation:
            joining = asyncio.create_task(registry.join(Offer(sdp="", type="offer")))
            await until(lambda: worker.hub.live_sessions == 1)
            joining.cancel()
            await asyncio.wait({joining})
        assert worker.hub.live_sessions == 0
        assert not registry.peers


# -- invalid offers ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def real_offer() -> AsyncIterator[str]:
    async with unconnected_client() as client:
        yield await client.offer()


async def test_invalid_offers_are_422_and_hold_no_session(address: str) -> None:
    async with real_offer() as sdp:
        lines = sdp.splitlines(keepends=True)
        audio_only = sdp[: sdp.index("m=application")].replace("BUNDLE 0 1", "BUNDLE 0")
        invalid = {
            "empty": "",
            "garbage": "\0\1garbage" * 100,
            "half": sdp[: len(sdp) // 2],
            "no fingerprint": "".join(line for line in lines if "fingerprint" not in line),
            "no ICE": "".join(line for line in lines if "ice-" not in line),
            "no data channel": audio_only,
            "bundle with a missing section": sdp.replace("BUNDLE 0 1", "BUNDLE 5 1"),
            "sends but receives nothing": sdp.replace("a=recvonly", "a=sendonly"),
            "no Opus": sdp.replace("opus/48000/2", "speex/48000/2").replace("PCM", "XXX"),
            "shuffled": "".join(reversed(lines)),
        }
        for name, offer in invalid.items():
            answer = await post_offer(address, offer)
            assert answer.status_code == 422, name
            assert answer.json()["error"]["code"] == "invalid_request"
        no_audio = sdp[: sdp.index("m=audio")] + sdp[sdp.index("m=application") :]
        for offer in (no_audio, audio_only):  # what a page gets that forgets a half
            assert "needs a data channel and audio" in (await post_offer(address, offer)).text
        assert await metric(address, "tts_sessions") == 0
        assert (await post_offer(address, sdp, voice="unknown")).status_code == 404
        assert (await post_offer(address, sdp, speed="fast")).status_code == 422
        assert await metric(address, "tts_sessions") == 0


async def test_invalid_offer_bodies_are_rejected(address: str) -> None:
    import httpx

    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        for body in ("", "[]", "{}", '{"sdp": "x"}', '{"sdp": "x", "type": "answer"}', '{"sdp": 1, "type": "offer"}'):
            assert (await http.post("/webrtc/offer", content=body)).status_code == 422
        large = json.dumps({"sdp": "x" * 2_000_000, "type": "offer"})
        assert (await http.post("/webrtc/offer", content=large)).status_code == 413


async def test_offer_needs_key_and_enabled_webrtc() -> None:
    async with serving(server={"api_keys": ["a-long-secret"]}) as address, real_offer() as sdp:
        assert (await post_offer(address, sdp)).status_code == 401
    async with serving(webrtc={"enabled": False}) as address, real_offer() as sdp:
        assert (await post_offer(address, sdp)).status_code == 404


async def test_missing_extra_is_501_with_install_command(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from tts_worker.features import webrtc

    for module in ("peer", "track"):
        monkeypatch.delitem(sys.modules, f"tts_worker.features.webrtc.{module}", raising=False)
        monkeypatch.delattr(webrtc, module, raising=False)
    monkeypatch.setitem(sys.modules, "aiortc", None)
    async with serving() as other, real_offer() as sdp:
        answer = await post_offer(other, sdp)
        assert answer.status_code == 501
        assert 'pip install ".[webrtc]"' in answer.json()["error"]["message"]
