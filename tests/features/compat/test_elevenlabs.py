"""ElevenLabs-compatible API: LiveKit's plugin, the vendor's SDK and plain clients against the real server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import serving
from tests.fakes.late import LateModule
from tests.integration.test_websocket import until_live_sessions
from tts_worker.features.compat.character_times import CharacterClock
from tts_worker.server.limits import ApiLimits
from tts_worker.types import Word

elevenlabs_client = LateModule("elevenlabs.client", "needs the package elevenlabs")
elevenlabs_core = LateModule("elevenlabs.core")
livekit_elevenlabs = LateModule("livekit.plugins.elevenlabs", "needs livekit-plugins-elevenlabs")

TEXT = "Hello there, my friend. How are you today?"
SAMPLES = 24 * 60 * len("".join(TEXT.split()))  # the tone engine: 60 ms a character
LONG = "This is a rather long story, and it goes on and on. " * 40


class Client:
    """A plain WebSocket client that records messages."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.log: list[dict[str, Any]] = []

    async def send(self, context: str | None = None, /, **message: Any) -> None:
        await self.socket.send(json.dumps({**({"context_id": context} if context else {}), **message}))

    async def say(self, context: str, text: str = TEXT) -> None:
        await self.send(context, text=" ", voice_settings={})
        await self.send(context, text=text, flush=True)
        await self.send(context, text="", flush=True)

    async def next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self.socket.recv())
        self.log.append(message)
        return message

    async def until(self, field: str, context: str | None = None) -> dict[str, Any]:
        while True:
            message = await self.next()
            if message.get(field) and (context is None or message.get("contextId") == context):
                return message

    def messages(self, context: str | None) -> list[dict[str, Any]]:
        return [message for message in self.log if message.get("contextId") == context]

    def pcm(self, context: str | None = None) -> bytes:
        return b"".join(
            base64.b64decode(message["audio"]) for message in self.messages(context) if message.get("audio")
        )

    def text(self, context: str | None = None) -> str:
        return "".join("".join(m["alignment"]["chars"]) for m in self.messages(context) if m.get("alignment"))


@asynccontextmanager
async def dial(
    address: str, path: str = "tone/multi-stream-input", query: str = "", **options: Any
) -> AsyncIterator[Client]:
    url = f"ws://{address}/v1/text-to-speech/{path}?model_id=x&output_format=pcm_24000{query}"
    options = {"close_timeout": 0.1, **options}  # unread audio keeps the client from seeing the closing handshake
    async with connect(url, compression=None, max_size=None, open_timeout=60, **options) as socket:
        yield Client(socket)


# -- LiveKit's plugin -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def plugin(address: str, **options: Any) -> AsyncIterator[Any]:
    async with aiohttp.ClientSession() as http:
        options = {"voice_id": "tone", "encoding": "pcm_24000", **options}
        tts = livekit_elevenlabs.TTS(api_key="any key", base_url=f"http://{address}/v1", http_session=http, **options)
        try:
            yield tts
        finally:
            await tts.aclose()


async def spoken(stream: Any) -> tuple[int, list[Any]]:
    samples = 0
    words = []
    async for event in stream:
        samples += event.frame.samples_per_channel
        words += event.frame.userdata.get("lk.timed_transcripts", [])
    return samples, words


async def test_livekit_plugin_streams_concurrent_contexts() -> None:
    async with serving() as address, plugin(address) as tts:

        async def speak() -> tuple[int, list[Any]]:
            async with tts.stream() as stream:
                for piece in ("Hello there, ", "my fri", "end. How are", " you today?"):
                    stream.push_text(piece)
                    await asyncio.sleep(0)
                stream.end_input()
                return await spoken(stream)

        for samples, words in await asyncio.gather(speak(), speak(), speak()):
            assert samples >= SAMPLES
            assert "".join(words).split() == TEXT.split()
            starts = [word.start_time for word in words]
            assert starts == sorted(starts)
            how = next(word for word in words if word.strip() == "How")
            assert 18 * 0.06 <= how.start_time <= samples / 24_000, "times count from the start of the audio"
        await until_live_sessions(address, 0)


@pytest.mark.parametrize("encoding", ["mp3_22050_32", "mp3_44100_128", "pcm_16000", "opus_48000_64"])
async def test_livekit_plugin_decodes_every_format(encoding: str) -> None:
    async with serving() as address, plugin(address, encoding=encoding) as tts:
        async with tts.stream() as stream:
            stream.push_text(TEXT)
            stream.end_input()
            samples, _ = await spoken(stream)
        assert samples / tts.sample_rate == pytest.approx(SAMPLES / 24_000, abs=0.8)
        assert {voice.id for voice in await tts.list_voices()} == {"tone", "tone-low", "tone-high"}


async def test_livekit_interruption_ends_only_its_session() -> None:
    async with serving() as address, plugin(address) as tts:
        stream = tts.stream()
        other = tts.stream()
        for each in (stream, other):
            each.push_text(LONG)
            each.flush()
            await each.__anext__()
        await until_live_sessions(address, 2)
        await stream.aclose()
        await until_live_sessions(address, 1)
        other.end_input()
        samples, _ = await spoken(other)
        assert samples > 24 * 60 * 1_500
        await other.aclose()


# -- the vendor's SDK -------------------------------------------------------------------------------------------------


async def test_sdk_downloads_every_format_family() -> None:
    async with serving() as address, httpx.AsyncClient(timeout=60) as http:
        client = elevenlabs_client.AsyncElevenLabs(api_key="any key", base_url=f"http://{address}", httpx_client=http)
        speech = client.text_to_speech
        lengths_s = []
        for name in ("pcm_24000", "ulaw_8000", "mp3_44100_128", "wav_24000"):
            method = speech.stream if name.startswith("pcm") else speech.convert
            data = b"".join([chunk async for chunk in method("tone", text=TEXT, model_id="x", output_format=name)])
            if name.startswith(("pcm", "ulaw")):
                lengths_s.append(len(data) / (48_000 if name == "pcm_24000" else 8_000))
            else:
                samples, rate_hz = soundfile.read(io.BytesIO(data))
                lengths_s.append(len(samples) / rate_hz)
        assert max(lengths_s) - min(lengths_s) < 0.15
        for options, status, code in (
            ({"output_format": "pcm_99"}, 400, "invalid_request"),
            ({"voice_settings": {"speed": 9.0}}, 400, "invalid_request"),
            ({"voice_id": "unknown"}, 404, "unknown_voice"),
        ):
            with pytest.raises(elevenlabs_core.ApiError) as exc_info:
                await speech.stream(**{"voice_id": "tone", "text": TEXT, **options}).__anext__()
            assert exc_info.value.status_code == status
            assert exc_info.value.body["detail"]["status"] == code


@asynccontextmanager
async def sdk(address: str, prefix: str = "") -> AsyncIterator[Any]:
    async with httpx.AsyncClient(timeout=60) as http:
        yield elevenlabs_client.AsyncElevenLabs(
            api_key="any key", base_url=f"http://{address}{prefix}", httpx_client=http
        )


PREFIXES = pytest.mark.parametrize("prefix", ["", "/elevenlabs"], ids=["root", "prefix"])


def times_of(alignment: Any, text: str) -> list[float]:
    """Return the start times after checking that each character of the text has one pair of times, in order."""
    assert "".join(alignment.characters) == text
    starts = alignment.character_start_times_seconds
    ends = alignment.character_end_times_seconds
    assert len(starts) == len(ends) == len(text)
    assert starts == sorted(starts)
    assert all(start <= end for start, end in zip(starts, ends, strict=True))
    return list(starts)


@PREFIXES
async def test_sdk_converts_with_timestamps(prefix: str) -> None:
    async with serving() as address, sdk(address, prefix) as client:
        speech = client.text_to_speech
        whole = await speech.convert_with_timestamps("tone", text=TEXT, output_format="pcm_24000")
        plain = b"".join([chunk async for chunk in speech.convert("tone", text=TEXT, output_format="pcm_24000")])
        assert base64.b64decode(whole.audio_base_64) == plain
        starts = times_of(whole.alignment, TEXT)
        assert starts[TEXT.index("How")] >= 18 * 0.06
        assert whole.alignment.character_end_times_seconds[-1] <= len(plain) / 48_000
        assert whole.normalized_alignment == whole.alignment


@PREFIXES
async def test_sdk_streams_with_timestamps(prefix: str) -> None:
    async with serving() as address, sdk(address, prefix) as client:
        arguments = {"voice_id": "tone", "text": LONG[:400], "output_format": "pcm_24000"}
        chunks = [chunk async for chunk in client.text_to_speech.stream_with_timestamps(**arguments)]
        whole = await client.text_to_speech.convert_with_timestamps(**arguments)
        assert len(chunks) > 3
        pcm = b"".join(base64.b64decode(chunk.audio_base_64) for chunk in chunks)
        assert pcm == base64.b64decode(whole.audio_base_64)
        timed = [chunk.alignment for chunk in chunks if chunk.alignment]
        characters = "".join("".join(alignment.characters) for alignment in timed)
        starts = [start for alignment in timed for start in alignment.character_start_times_seconds]
        assert (characters, starts) == (LONG[:400], whole.alignment.character_start_times_seconds)


@pytest.mark.parametrize("name", ["mp3_44100_128", "opus_48000_64", "wav_24000"])
async def test_every_format_has_timestamps(name: str) -> None:
    async with serving() as address, sdk(address) as client:
        whole = await client.text_to_speech.convert_with_timestamps("tone", text=TEXT, output_format=name)
        samples, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(whole.audio_base_64)))
        assert len(samples) / rate_hz == pytest.approx(SAMPLES / 24_000, abs=0.8)
        times_of(whole.alignment, TEXT)


@PREFIXES
async def test_sdk_searches_voices(prefix: str) -> None:
    async with serving() as address, sdk(address, prefix) as client:
        found = await client.voices.search()
        assert [voice.voice_id for voice in found.voices] == ["tone", "tone-low", "tone-high"]
        assert (found.has_more, found.total_count, found.next_page_token) == (False, 3, None)
        found = await client.voices.search(search="LOW")
        assert [voice.name for voice in found.voices] == ["tone-low"]
        found = await client.voices.search(voice_ids=["tone", "tone-high"], sort="name", sort_direction="desc")
        assert [voice.voice_id for voice in found.voices] == ["tone-high", "tone"]
        first = await client.voices.search(page_size=2)
        assert first.has_more
        second = await client.voices.search(page_size=2, next_page_token=first.next_page_token)
        assert [voice.voice_id for voice in second.voices] == ["tone-high"]
        with pytest.raises(elevenlabs_core.ApiError) as exc_info:
            await client.voices.search(page_size=0)
        assert exc_info.value.body["detail"]["status"] == "invalid_request"


@PREFIXES
async def test_sdk_gets_voices_and_models(prefix: str) -> None:
    async with serving() as address, sdk(address, prefix) as client:
        assert {voice.voice_id for voice in (await client.voices.get_all()).voices} == {"tone", "tone-low", "tone-high"}
        voice = await client.voices.get("tone-low")
        assert (voice.voice_id, voice.name, voice.category) == ("tone-low", "tone-low", "premade")
        assert voice.verified_languages[0].model_id == "tone"
        with pytest.raises(elevenlabs_core.ApiError) as exc_info:
            await client.voices.get("unknown")
        assert (exc_info.value.status_code, exc_info.value.body["detail"]["status"]) == (404, "unknown_voice")
        models = await client.models.list()
        assert [(model.model_id, model.can_do_text_to_speech) for model in models] == [("tone", True)]
        assert models[0].languages[0].language_id == "mul"
        assert models[0].maximum_text_length_per_request == 20_000


async def test_prefix_serves_sockets() -> None:
    async with serving(server={"api_keys": ["a-long-secret"]}) as address:
        url = f"ws://{address}/elevenlabs/v1/text-to-speech/tone/stream-input?xi_api_key=a-long-secret"
        async with connect(url, compression=None, max_size=None, open_timeout=60) as socket:
            client = Client(socket)
            await client.send(text=TEXT)
            await client.send(text="")
            await client.until("isFinal")
            assert client.text() == TEXT


# -- contexts ---------------------------------------------------------------------------------------------------------


async def test_character_times_agree_in_both_references() -> None:
    text = "  **Twenty** dollars,\tor $20 – *very* fine.  "
    async with serving() as address:
        starts = []
        for query in ("", "&sync_alignment=true"):
            async with dial(address, query=query) as client:
                await client.send("a", text=" ")
                for place in range(0, len(text), 7):
                    await client.send("a", text=text[place : place + 7])
                await client.send("a", text="", flush=True)
                await client.send("a", close_context=True)
                await client.until("isFinal")
                assert client.text("a") == text
                clock_ms = 0
                found = []
                for message in client.messages("a"):
                    if (times := message.get("alignment")) is None:
                        continue
                    ends = map(sum, zip(times["charStartTimesMs"], times["charDurationsMs"], strict=True))
                    found += [clock_ms + start for start in times["charStartTimesMs"]]
                    clock_ms = 0 if query else clock_ms + list(ends)[-1]
                starts.append(found)
        assert starts[0] == starts[1] == sorted(starts[0])


async def test_close_context_ends_or_interrupts() -> None:
    async with serving() as address, dial(address) as client:
        await client.say("continuing", LONG)
        for name in ("flushed", "bare flush"):  # closed before any audio, or after a flush: the text ends
            await client.send(name, text=" ")
            await client.send(name, text=TEXT, flush=name == "flushed")
            if name == "bare flush":
                await client.send(name, text="", flush=True)
                await client.until("audio", name)
            await client.send(name, close_context=True)
            await client.until("isFinal", name)
            assert len(client.pcm(name)) // 2 >= SAMPLES
        await client.send("stopped", text=LONG + " ", flush=True)
        await client.until("audio", "stopped")
        await client.send("stopped", close_context=True)
        await client.until("isFinal", "stopped")
        await client.say("twice", LONG)
        await client.send("twice", close_context=True)
        await client.until("audio", "twice")
        await client.send("twice", close_context=True)
        await client.until("isFinal", "twice")
        assert len(client.pcm("twice")) // 2 < 24 * 60 * 1_500
        await client.send("continuing", close_context=True)
        await client.until("isFinal", "continuing")
        assert len(client.pcm("continuing")) > len(client.pcm("stopped"))
        assert client.messages("stopped")[-1]["isFinal"], "nothing follows"
        assert client.text("continuing") == LONG
        await until_live_sessions(address, 0)


async def test_names_are_reusable_and_keep_alives_open_nothing() -> None:
    async with serving() as address, dial(address) as client:
        for _ in range(2):
            await client.say("a")
            await client.send("a", close_context=True)
            await client.until("isFinal", "a")
        assert len(client.pcm("a")) // 2 >= 2 * SAMPLES
        await client.send(text="")
        await client.send("a", text="")
        await client.send("a", flush=True)
        await client.send("a", close_context=True)
        await client.send(text="A context without a name. ", flush=True)
        await client.until("audio")
        await client.send(text="", flush=True)
        await client.send(close_context=True)
        assert "contextId" not in await client.until("isFinal")
        assert not [message for message in client.log if message.get("error")]


async def test_close_socket_completes_all_contexts() -> None:
    async with serving() as address, dial(address) as client:
        for name in ("a", "b"):
            await client.say(name)
        await client.send(close_socket=True)
        with pytest.raises(ConnectionClosed) as closed:
            await client.until("never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
        assert all(len(client.pcm(name)) // 2 >= SAMPLES for name in ("a", "b"))


@pytest.mark.parametrize("last", [{"text": ""}, {"text": "", "flush": True}], ids=["empty", "flush"])
async def test_stream_input_ends_with_its_context(last: dict[str, Any]) -> None:
    async with serving() as address, dial(address, "tone-low/stream-input") as client:
        await client.send(
            text=" ", voice_settings={"stability": 0.5}, generation_config={"chunk_length_schedule": [50]}
        )
        for word in TEXT.split(" "):
            await client.send(text=word + " ", try_trigger_generation=True)
        await client.send(**last)
        with pytest.raises(ConnectionClosed) as closed:
            await client.until("never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
        assert client.log[-1] == {"audio": None, "isFinal": True}
        assert len(client.pcm()) // 2 >= SAMPLES
        assert client.text().split() == TEXT.split()


async def test_stream_input_ends_with_an_error() -> None:
    """The rest of a text whose beginning failed is not spoken: the client has sent it before it saw the error."""
    async with (
        serving(session={"max_sessions": 1, "slot_idle_s": 600}) as address,
        dial(address) as busy,
    ):
        await busy.say("a", LONG)
        await busy.until("audio", "a")
        for _ in range(5):
            async with dial(address, "tone/stream-input") as client:
                for text in (" ", *TEXT.split(" "), ""):
                    await client.send(text=text and text + " ")
                with pytest.raises(ConnectionClosed):
                    await client.until("never")
                (error,) = client.log
                assert error["code"] == "over_capacity"


async def test_unpunctuated_text_is_spoken_after_a_pause() -> None:
    async with serving(session={"flush_after_ms": 20}) as address, dial(address) as client:
        await client.send("a", text="I would like to book a table for two ")
        await client.until("audio", "a")


@pytest.mark.parametrize("auto_mode", [True, False])
async def test_auto_mode_separates_sentences(auto_mode: bool) -> None:
    async with serving() as address, dial(address, query=f"&auto_mode={str(auto_mode).lower()}") as client:
        for text in ("He sa", 'id "No."', "Why not?", " Be", "cause. ", "Yes."):
            await client.send("a", text=text)
        await client.send("a", text="", flush=True)  # makes close_context the end of the text
        await client.send("a", close_context=True)
        await client.until("isFinal")
        expected = 'He said "No." Why not? Because. Yes.'
        assert client.text("a") == (expected if auto_mode else expected.replace('" W', '"W'))


async def test_auto_mode_separates_sentences_that_begin_with_a_sign() -> None:
    sentences = (
        "It is 3.",
        "$5 more.",
        '"Yes," she said.',
        "(Note that.)",
        "**Next** comes this.",
        "- One.",
        "🎉 Done.",
    )
    async with serving() as address, dial(address, query="&auto_mode=true") as client:
        for text in (*sentences, '"', ")", "..", '" he said.'):  # the last ones continue a sentence
            await client.send("a", text=text)
        await client.send("a", text="", flush=True)
        await client.send("a", close_context=True)
        await client.until("isFinal")
        assert client.text("a") == " ".join(sentences) + '").." he said.'


async def test_character_times_cover_a_cut_last_character() -> None:
    async with serving() as address, dial(address) as client:
        await client.send("a", text="Hello there. \ud83d")
        await client.send("a", close_context=True)
        await client.until("isFinal")
        assert client.text("a") == "Hello there. \ufffd"


async def test_idle_context_ends_after_timeout() -> None:
    async with serving() as address, dial(address, query="&inactivity_timeout=0.2") as client:
        await client.send("a", text=" ")
        await client.until("isFinal", "a")
        await until_live_sessions(address, 0)


async def test_contexts_may_use_every_slot() -> None:
    async with serving(session={"max_sessions": 4, "slot_idle_s": 600}) as address, dial(address) as client:
        names = ["a", "b", "c", "d"]
        for name in names:  # downloads may use only three of four slots
            await client.say(name, LONG)
        for name in names:
            await client.until("audio", name)


# -- invalid input ----------------------------------------------------------------------------------------------------


async def test_invalid_messages_keep_the_socket_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApiLimits, "of", lambda settings: ApiLimits(max_message_chars=3_000))
    async with (
        serving(session={"max_sessions": 2, "slot_idle_s": 600}) as address,
        dial(address) as client,
    ):
        await client.say("fine", LONG)
        invalid: list[dict[str, Any]] = [
            {"text": 5},
            {"voice_settings": {"speed": 1.0}},
            {"text": "x", "flush": "yes"},
            {"text": " ", "voice_settings": {"speed": 99.0}},
            {"text": "x" * 3_001},
        ]
        for message in invalid:
            await client.send("invalid", **message)
            error = await client.until("error", "invalid")
            assert error["error"] == error["message"]
            assert "x" * 10 not in error["error"]
        for raw in ("not JSON", "[]", "{}", b"\0\1", '{"context_id": 3, "text": "x"}'):
            await client.socket.send(raw)
            assert (await client.until("error"))["code"] == "invalid_request"
        await client.say("second", LONG)
        await client.until("audio", "second")
        await client.send("third", text=TEXT)
        assert (await client.until("error", "third"))["code"] == "over_capacity"
        for name in ("second", "fine"):
            await client.send(name, close_context=True, unknown_field=[1])
            await client.until("isFinal", name)
        assert client.text("fine") == LONG


async def test_invalid_handshakes_are_rejected() -> None:
    async with serving(server={"api_keys": ["a-long-secret"]}) as address:
        key = {"additional_headers": {"xi-api-key": "a-long-secret"}}
        async with dial(address, **key), dial(address, query="&xi_api_key=a-long-secret"):
            pass
        for path, query, options, status in (
            ("tone/multi-stream-input", "", {}, 401),
            ("unknown/multi-stream-input", "", key, 404),
            ("tone/stream-input", "&output_format=gif", key, 400),
            ("tone/stream-input", "&inactivity_timeout=soon", key, 400),
        ):
            with pytest.raises(InvalidStatus) as exc_info:
                async with dial(address, path, query, **options):
                    pass
            assert exc_info.value.response.status_code == status


# -- character times --------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=40), st.lists(st.integers(0, 40), max_size=12), st.booleans(), st.data())
def test_every_character_is_timed_once_in_order(
    text: str, cuts: list[int], per_message: bool, data: st.DataObject
) -> None:
    clock = CharacterClock(24_000, per_message=per_message)
    edges = sorted({min(cut, len(text)) for cut in cuts})
    sample = 0
    taken = []
    base_ms = 0
    last_ms = 0
    words = []
    for start, end in zip(edges[::2], edges[1::2], strict=False):
        begin = sample + data.draw(st.integers(0, 10_000))
        sample = begin + data.draw(st.integers(0, 10_000))
        words.append(Word(text[start:end], start, end, begin, sample))
    clock.text = text
    for word in words:
        clock.add([word])
        if data.draw(st.booleans()) and (times := clock.take()) is not None:
            taken.append(times)
    clock.finish()
    if (times := clock.take()) is not None:
        taken.append(times)
    assert "".join("".join(times["chars"]) for times in taken) == (text if edges[1:] and edges[1] else "")
    for times in taken:
        assert len(times["chars"]) == len(times["charStartTimesMs"]) == len(times["charDurationsMs"])
        for start_ms, length_ms in zip(times["charStartTimesMs"], times["charDurationsMs"], strict=True):
            assert length_ms >= 0
            assert base_ms + start_ms >= last_ms
            last_ms = base_ms + start_ms + length_ms
        base_ms = last_ms if per_message else 0
