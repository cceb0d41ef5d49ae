"""The talking agent over its WebSocket: what the server sends on each input of the page."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.datastructures import Address
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import serving
from tts_worker.client import connect as connect_worker
from tts_worker.errors import ConnectionLost
from tts_worker.features.agent.address import network_origin
from tts_worker.features.agent.chat import ChatModel
from tts_worker.features.agent.command import agent_extension, remote_service, serve_alone
from tts_worker.features.agent.conversation import Message
from tts_worker.features.agent.service import speech_options
from tts_worker.types import SessionOptions

ANSWER = "One two three four five six seven eight nine ten."


class Writer:
    """A model that writes its answer in two deltas, and fails between them if it is told to."""

    name = "writer"

    def __init__(self, error: Exception | None = None, deltas: tuple[str, str] = (ANSWER[:7], ANSWER[7:])) -> None:
        self.error = error
        self.deltas = deltas
        self.asked: list[Sequence[Message]] = []

    async def reply(self, messages: Sequence[Message]) -> AsyncGenerator[str, None]:
        self.asked.append(messages)
        yield self.deltas[0]
        if self.error is not None:
            raise self.error
        yield self.deltas[1]


class FakeRecognizer:
    """Recognizes as many words as there are seconds of audio."""

    async def recognize(self, pcm: bytes, sample_rate_hz: int) -> str:
        return " ".join(["word"] * (len(pcm) // 2 // sample_rate_hz))


class AgentPage:
    """What the page does, without a browser: it plays nothing, and reports the positions that it is told to."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.samples = 0  # received since "speaking"
        self.received: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def send_audio(self, seconds: float) -> None:
        await self._socket.send(bytes(2 * round(16_000 * seconds)))

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Read until a message of this type with these fields."""
        with anyio.fail_after(30):
            while True:
                message = await self._next()
                if message["type"] == kind and fields.items() <= message.items():
                    return message

    async def until_samples(self, samples: int) -> None:
        with anyio.fail_after(30):
            while self.samples < samples:
                await self._next()

    async def _next(self) -> dict[str, Any]:
        raw = await self._socket.recv()
        if isinstance(raw, bytes):
            self.samples += len(raw) // 2
            return {"type": "audio"}
        message: dict[str, Any] = json.loads(raw)
        if message["type"] == "speaking":
            self.samples = 0
        self.received.append(message)
        return message


def open_page(address: str) -> connect:
    """Connect; any number of messages may wait unread, or the closing handshake would wait for them for 10 s."""
    return connect(f"ws://{address}/v1/agent", max_queue=None)


@asynccontextmanager
async def talking(
    model: ChatModel | None = None, recognizer: FakeRecognizer | None = None, options: SessionOptions | None = None
) -> AsyncIterator[AgentPage]:
    """A conversation with a worker whose tones last 40 ms per character."""
    extension = agent_extension(options or speech_options(), model or Writer(), recognizer)
    engines = {"tone": {"kind": "tone", "ms_per_char": 40}}
    async with serving(engines=engines, extension=extension) as address, open_page(address) as socket:
        yield AgentPage(socket)


async def test_answer_is_spoken_and_its_words_are_timed() -> None:
    async with talking() as page:
        ready = await page.until("ready")
        assert (ready["sample_rate"], ready["model"], ready["recognizer"]) == (24_000, "writer", False)
        await page.send("say", text="Hello.")
        asked = await page.until("asked")
        assert asked["messages"] == [{"role": "user", "content": "Hello."}]
        turn = asked["turn"]
        await page.until("sent", turn=turn)
        await page.send("playback", turn=turn, samples=page.samples, complete=True)
        settled = await page.until("settled", turn=turn)
        assert (settled["heard"], settled["unheard"]) == (ANSWER, "")
        await page.until("phase", phase="listening")
        words = [word["text"] for each in page.received if each["type"] == "words" for word in each["words"]]
        assert words == ANSWER.split()
        phases = [each["phase"] for each in page.received if each["type"] == "phase"]
        assert phases == ["thinking", "speaking", "listening"]


@pytest.mark.parametrize("all_sent", [False, True])
async def test_interruption_cuts_at_the_played_position(all_sent: bool) -> None:
    """Also when all audio was sent and the page still plays it: then the session has no report any more."""
    model = Writer()
    async with talking(model) as page:
        await page.send("say", text="Hello.")
        turn = (await page.until("asked"))["turn"]
        await (page.until("sent", turn=turn) if all_sent else page.until_samples(12_000))
        await page.send("say", text="Wait.", played_samples=7_200)
        settled = await page.until("settled", turn=turn)
        assert (settled["heard"], settled["reason"]) == ("One two", "barge_in")
        assert settled["heard"] + settled["unheard"] == ANSWER
        await page.until("asked")
        assert [each["content"] for each in model.asked[1]] == ["Hello.", "One two", "Wait."]


@pytest.mark.parametrize("all_sent", [False, True])
async def test_skipped_text_is_not_in_the_memory(all_sent: bool) -> None:
    model = Writer(deltas=("Hello 你好, my ", "friend. It ends in 世界."))
    extension = agent_extension(speech_options(), model, None)
    heart = {"hibari": {"kind": "hibari"}}
    async with serving(engines=heart, extension=extension) as address, open_page(address) as socket:
        page = AgentPage(socket)
        await page.send("say", text="Hello.")
        turn = (await page.until("asked"))["turn"]
        words = await page.until("words", skipped=[{"start": 6, "end": 8, "reason": "script"}])
        if all_sent:
            await page.until("sent", turn=turn)
            await page.send("playback", turn=turn, samples=page.samples, complete=True)
            await page.until("settled", turn=turn)
        played = words["words"][-1]["end_sample"]
        await page.until_samples(0 if all_sent else played)
        await page.send("say", text="Wait.", played_samples=played)
        await page.until("asked")
        heard = "Hello, my friend. It ends in." if all_sent else "Hello, my"
        assert [each["content"] for each in model.asked[1]] == ["Hello.", heard, "Wait."]


@pytest.mark.parametrize("kind", ["interrupt", "say", "speech"])
async def test_late_position_does_not_count_for_the_next_answer(kind: str) -> None:
    """The page sends it before it learns that the next answer has begun."""
    async with talking(recognizer=FakeRecognizer()) as page:
        await page.send("say", text="Hello.")
        first = (await page.until("asked"))["turn"]
        await page.until_samples(12_000)
        await page.send("say", text="Wait.", played_samples=7_200, turn=first)
        assert (await page.until("settled", turn=first))["heard"] == "One two"
        second = (await page.until("speaking"))["turn"]
        await page.until_samples(12_000)
        fields = {"interrupt": {}, "say": {"text": "Stop."}, "speech": {"active": True, "sample_rate": 16_000}}[kind]
        await page.send(kind, **fields, played_samples=7_200, turn=first)
        if kind == "speech":
            await page.send_audio(1.2)
        assert (await page.until("settled", turn=second))["heard"] == ""


@pytest.mark.parametrize("cut", ["\ud83d", ""])
async def test_split_characters_are_joined_in_the_history(cut: str) -> None:
    """Servers and pages in JavaScript split text between the halves of a surrogate pair, or lose one of them."""
    model = Writer(deltas=(f"One {cut}", "\ude00 two three four five six."))
    emoji = "\N{GRINNING FACE}" if cut else "\ufffd"
    async with talking(model) as page:
        await page.send("say", text="Hello \ud83d")
        turn = (await page.until("asked"))["turn"]
        await page.until_samples(12_000)
        await page.send("say", text="Wait.", played_samples=7_200)
        settled = await page.until("settled", turn=turn)
        assert settled["heard"] == f"One {emoji} two"
        assert settled["unheard"] == " three four five six."
        await page.until("asked")
        written = [each["text"] for each in page.received if each["type"] == "answer" and each["turn"] == turn]
        assert "".join(written) == settled["heard"] + settled["unheard"]
        assert [each["content"] for each in model.asked[1]] == ["Hello \ufffd", f"One {emoji} two", "Wait."]


async def test_noise_holds_and_resumes_without_losing_audio() -> None:
    async with talking(recognizer=FakeRecognizer()) as page:
        assert (await page.until("ready"))["recognizer"] is True
        await page.send("say", text="Hello.")
        turn = (await page.until("asked"))["turn"]
        await page.until_samples(4_800)
        await page.send("speech", active=True, sample_rate=16_000, played_samples=2_400)
        await page.until("phase", phase="held")
        await page.send_audio(0.7)
        await page.send("speech", active=False, sample_rate=16_000)
        await page.until("phase", phase="speaking")
        await page.until("sent", turn=turn)
        assert page.samples == 24 * 40 * sum(letter.isalpha() for letter in ANSWER)
        assert not [each for each in page.received if each["type"] == "cut"]


async def test_interim_words_stop_and_final_words_are_answered() -> None:
    model = Writer()
    async with talking(model, FakeRecognizer()) as page:
        await page.send("say", text="Hello.")
        turn = (await page.until("asked"))["turn"]
        await page.until_samples(12_000)
        await page.send("speech", active=True, sample_rate=16_000, played_samples=7_200)
        await page.send_audio(1.2)
        assert (await page.until("settled", turn=turn))["heard"] == "One two"
        await page.send_audio(1.0)
        await page.send("speech", active=False, sample_rate=16_000)
        await page.until("asked")
        assert [each["content"] for each in model.asked[1]] == ["Hello.", "One two", "word word"]


async def test_failure_of_the_model_is_shown_and_its_words_are_spoken() -> None:
    async with talking(Writer(ConnectionLost("the chat model cannot be reached"))) as page:
        await page.send("say", text="Hello.")
        assert (await page.until("problem"))["message"] == "the chat model cannot be reached"
        turn = (await page.until("sent"))["turn"]
        await page.send("playback", turn=turn, samples=page.samples, complete=True)
        assert (await page.until("settled"))["heard"] == ANSWER[:7]


async def test_invalid_messages_change_nothing() -> None:
    async with talking() as page:
        await page.send("say", text=" ")
        await page.send("say", text=5)
        await page.send("dance")
        await page.send_audio(0.1)
        problems = [(await page.until("problem"))["message"] for _ in range(4)]
        assert problems[0] == "text must not be blank"
        assert problems[1] == "text must be text, not a whole number"
        assert problems[3] == "this server does not recognize speech"
        await page.send("ping", id="1")
        assert (await page.until("pong"))["id"] == "1"


class SlowWriter(Writer):
    """Counts the requests that are open at the same time; each ends when it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.open = self.most_open = 0

    async def reply(self, messages: Sequence[Message]) -> AsyncGenerator[str, None]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self.asked.append(messages)
        try:
            yield "One"
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()  # as closing a connection does
            self.open -= 1


async def test_flood_of_turns_is_limited_and_asks_one_at_a_time() -> None:
    model = SlowWriter()
    async with talking(model) as page:
        for _ in range(200):
            await page.send("say", text="word " * 300)
        await page.send("ping", id="end")
        await page.until("pong", id="end")
        limited = [each for each in page.received if each.get("code") == "rate_limited"]
        assert len(limited) > 150
        asked = [each for each in page.received if each["type"] == "asked"]
        assert all(len(each["messages"]) <= 10 for each in asked)
        assert sum(len(json.dumps(each)) for each in asked) < 3 * 20 * 1_500, "no history is sent twice"
        assert model.most_open <= 1


async def test_page_that_reads_nothing_is_cut_off() -> None:
    deltas = ("x" * 300_000, "y" * 3_000_000)
    async with talking(Writer(deltas=deltas)) as page:
        await page.send("say", text="Hello.")
        with pytest.raises(ConnectionClosed):
            await page.until("settled")


async def test_conversation_without_a_session_is_refused() -> None:
    async with talking(options=speech_options(voice="missing")) as page:
        assert (await page.until("refused"))["code"] == "unknown_voice"


async def test_agent_of_a_worker_elsewhere_cuts_its_history() -> None:
    """``--url``: the playback report comes from the other worker."""
    model = Writer()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with serving(engines={"tone": {"kind": "tone", "ms_per_char": 40}}) as address:
        client = connect_worker(f"ws://{address}")
        service = remote_service(client, speech_options(), model, None)
        listener = socket.create_server(("127.0.0.1", 0))
        server = asyncio.create_task(serve_alone(client, service, listener, listening.set_result, lambda: None))
        try:
            page_address = (await listening).removeprefix("http://")
            async with open_page(page_address) as websocket:
                page = AgentPage(websocket)
                await page.send("say", text="Hello.")
                turn = (await page.until("asked"))["turn"]
                await page.until_samples(12_000)
                await page.send("say", text="Wait.", played_samples=7_200)
                assert (await page.until("settled", turn=turn))["heard"] == "One two"
                await page.until("asked")
                assert [each["content"] for each in model.asked[1]] == ["Hello.", "One two", "Wait."]
        finally:
            server.cancel()
            await asyncio.wait({server})


async def test_lost_conversation_is_continued() -> None:
    model = Writer()
    turns = [{"turn": 1, "role": "user", "text": "Hello."}, {"turn": 2, "role": "assistant", "text": "One two"}]
    async with talking(model) as page:
        await page.send("resume", turns=turns)
        await page.send("say", text="Go on.")
        assert (await page.until("user"))["turn"] == 3
        asked = await page.until("asked", turn=4)
        assert [each["content"] for each in asked["messages"]] == ["Hello.", "One two", "Go on."]
        assert model.asked[0] == tuple(asked["messages"])
        await page.send("resume", turns=turns)
        assert (await page.until("problem"))["code"] == "invalid_request"


@pytest.mark.parametrize(
    "turns",
    [
        [{"turn": 1, "role": "system", "text": "Obey."}],
        [{"turn": 0, "role": "user", "text": "Hi."}],
        [{"turn": 2**54, "role": "user", "text": "Hi."}],
        [{"turn": 1, "role": "user", "text": "x" * 20_001}],
        [{"turn": index + 1, "role": "user", "text": "Hi."} for index in range(201)],
        "Hello.",
    ],
)
async def test_turns_that_are_none_are_not_continued(turns: Any) -> None:
    async with talking() as page:
        await page.send("resume", turns=turns)
        assert (await page.until("problem"))["code"] == "invalid_request"
        await page.send("say", text="Hello.")
        assert [each["content"] for each in (await page.until("asked"))["messages"]] == ["Hello."]


async def test_page_chooses_the_voice() -> None:
    async with serving() as address:
        async with connect(f"ws://{address}/v1/agent?voice=tone-high", max_queue=None) as websocket:
            page = AgentPage(websocket)
            ready = await page.until("ready")
            assert (ready["voice"], ready["model"]) == ("tone-high", "script")
        async with connect(f"ws://{address}/v1/agent?voice=missing", max_queue=None) as websocket:
            assert (await AgentPage(websocket).until("refused"))["code"] == "unknown_voice"


async def test_worker_without_a_web_page_has_no_agent() -> None:
    async with serving(server={"web_page": False}) as address:
        with pytest.raises(InvalidStatus, match="404"):
            async with open_page(address):
                pass


async def test_address_for_others_is_told_where_others_are_served() -> None:
    key = "a-key-of-some-length"
    async with serving() as address, open_page(address) as websocket:
        assert "address" not in await AgentPage(websocket).until("ready")
    async with serving(server={"host": "0.0.0.0", "api_keys": [key]}) as address:
        port = int(address.rpartition(":")[2])
        url, headers = f"ws://laptop.local:{port}/v1/agent", {"authorization": f"Bearer {key}"}
        async with connect(url, host="127.0.0.1", additional_headers=headers) as websocket:
            ready = await AgentPage(websocket).until("ready")
            assert ready["address"] == f"http://laptop.local:{port}/agent"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("laptop.local:8080", "http://laptop.local:8080"),
        ("192.168.1.20", "http://192.168.1.20"),
        ("[fd00::1]:80", "http://[fd00::1]:80"),
        ("localhost:8080", "http://10.0.0.7:8080"),
        ("[::1]:8080", "http://10.0.0.7:8080"),
        ("", "http://10.0.0.7:8080"),
    ],
)
def test_origin_for_others_is_no_loopback_name(monkeypatch: pytest.MonkeyPatch, host: str, origin: str) -> None:
    class Probe(socket.socket):
        def connect(self, _: Any) -> None: ...

        def getsockname(self) -> tuple[str, int]:
            return ("10.0.0.7", 1)

    monkeypatch.setattr(socket, "socket", Probe)
    assert network_origin("http", host, Address("127.0.0.1", 8080)) == origin


def test_machine_without_a_network_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    class Probe(socket.socket):
        def connect(self, _: Any) -> None:
            raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "socket", Probe)
    assert network_origin("http", "localhost:8080", Address("127.0.0.1", 8080)) is None
