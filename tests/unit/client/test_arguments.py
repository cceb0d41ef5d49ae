"""What a client refuses before it connects: wrong types and values, alike for every scheme."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from math import inf, nan
from typing import Any, cast

import pytest

from tts_worker import AsyncTTS, Speech
from tts_worker.client import ClientSettings, connect
from tts_worker.client.agent import with_plugin_options
from tts_worker.client.batches import BatchText
from tts_worker.client.conversion import AsyncConversion, SourceAudio
from tts_worker.errors import InvalidRequest
from tts_worker.types import SessionOptions

URLS = ["local:", "ws://127.0.0.1:9", "grpc://127.0.0.1:9"]
"""No worker answers: an argument that gets as far as a connection raises another error."""


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("timeout_s", ["1", True, -1.0, 0, nan, inf])
async def test_audio_timeout_must_be_a_time(url: str, timeout_s: Any) -> None:
    async with connect(url) as client:
        with pytest.raises(InvalidRequest, match="audio_timeout_s"):
            await client.open(audio_timeout_s=timeout_s)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("options", ["x", "", 0, {"voice": "tone"}])
async def test_options_must_be_session_options(url: str, options: Any) -> None:
    async with connect(url) as client:
        with pytest.raises(InvalidRequest, match="options must be SessionOptions"):
            await client.open(options)
        with pytest.raises(InvalidRequest, match="options must be SessionOptions"):
            client.convert(b"RIFF", options)


@pytest.mark.parametrize("name", ["connect_timeout_s", "audio_timeout_s", "heartbeat_s", "idle_s", "read_ahead_s"])
@pytest.mark.parametrize("value", ["1", None, True, -1.0, nan, inf])
def test_times_of_the_settings_are_checked(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=name):
        ClientSettings(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("idle_connections", -1), ("idle_connections", 1.5), ("api_key", 5)])
def test_other_settings_are_checked(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=name):
        ClientSettings(**{name: value})


def test_unused_connection_may_be_closed_at_once() -> None:
    assert ClientSettings(idle_s=0).idle_s == 0


@pytest.mark.parametrize(("url", "settings", "message"), [(5, None, "URL"), ("local:", "key", "ClientSettings")])
def test_connect_checks_its_arguments(url: Any, settings: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        connect(url, settings)


@pytest.mark.parametrize("url", URLS)
async def test_voices_check_their_arguments(url: str) -> None:
    anything: Any = 5
    async with connect(url) as client:
        for call in (
            client.voices.get(anything),
            client.voices.delete(anything),
            client.voices.add(anything, b"RIFF", consent=True),
            client.voices.add("anna", anything, consent=True),
            client.voices.add("anna", "a\0b", consent=True),
            client.voices.add("anna", "missing.wav", consent="perhaps"),
            client.voices.add("anna", b"RIFF", consent="\ud800"),
            client.voices.add("anna", b"RIFF", consent=True, transcript="\ud800"),
            client.voices.mix("both", anything),
        ):
            with pytest.raises(InvalidRequest):
                await call


@pytest.mark.parametrize("url", URLS)
async def test_batches_check_their_arguments(url: str) -> None:
    anything: Any = 5
    async with connect(url) as client:
        for call, message in (
            (client.batches.get(anything), "id of a batch"),
            (client.batches.cancel(anything), "id of a batch"),
            (anext(client.batches.results(anything)), "id of a batch"),
            (anext(client.batches.results("b", start=cast(Any, "0"))), "start"),
            (anext(client.batches.results("b", start=-1)), "start"),
            (anext(client.batches.results("b", retry_s=cast(Any, "1"))), "retry_s"),
            (anext(client.batches.results("b", retry_s=nan)), "retry_s"),
            (client.batches.submit(["One."], idempotency_key=anything), "idempotency_key"),
            (client.batches.submit(["One."], speed=nan), "JSON"),
            (client.batches.submit(["One."], voice=cast(Any, object())), "JSON"),
            (client.batches.submit([BatchText(cast(Any, b"One."))]), "JSON"),
        ):
            with pytest.raises(InvalidRequest, match=message):
                await call


def test_settings_of_speech_are_checked() -> None:
    anything: Any = 5
    with pytest.raises(InvalidRequest, match="ClientSettings"):
        AsyncTTS(settings=anything, api_key="key")


async def test_position_of_a_stop_before_the_first_text_is_checked() -> None:
    async with AsyncTTS("ws://127.0.0.1:9") as tts:
        speech = tts.stream("One word.")
        anything: Any = "5"
        with pytest.raises(InvalidRequest, match="samples"):
            speech.stop(anything)
        assert speech.outcome is None


def test_path_of_an_audio_file_is_checked() -> None:
    anything: Any = 5
    with pytest.raises(InvalidRequest, match="path"):
        Speech(b"\0\0", 24_000).save(anything)


@pytest.mark.parametrize("lead", ["x", None, nan, 0, 11])
def test_lead_of_an_agent_is_checked(lead: Any) -> None:
    with pytest.raises(InvalidRequest, match="max_ahead_s"):
        with_plugin_options(SessionOptions(), {"max_ahead_s": lead})


class Echo:
    """A worker whose conversion changes nothing."""

    async def convert(self, source: SourceAudio, options: SessionOptions) -> AsyncGenerator[bytes, None]:
        assert not isinstance(source.audio, bytes)
        async for part in source.audio:
            yield part


async def test_parts_of_live_audio_must_be_bytes() -> None:
    async def access() -> Echo:
        return Echo()

    parts: Any = [b"\0\0", bytearray(2), memoryview(b"\0\0"), "text"]
    conversion = AsyncConversion(access, parts, SessionOptions(), 16_000)
    assert [await anext(conversion) for _ in range(3)] == [b"\0\0"] * 3
    with pytest.raises(InvalidRequest, match="bytes, not str"):
        await anext(conversion)
