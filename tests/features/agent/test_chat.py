"""The client of chat endpoints, against a server on a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.errors import ConnectionLost, InvalidRequest, TTSWorkerError
from tts_worker.features.agent.chat import ChatEndpoint, ChatRefused, content_of

pytest.importorskip("httpx", reason="needs the extra 'agent'")


@asynccontextmanager
async def endpoint(status: str, body: str) -> AsyncIterator[tuple[ChatEndpoint, list[bytes]]]:
    """A client of a server that answers every request like this, and the requests."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: "))
        requests.append(head + await reader.readexactly(length))
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{body}".encode()
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    model = ChatEndpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "small", "secret")
    try:
        yield model, requests
    finally:
        await model.aclose()
        server.close()
        await server.wait_closed()


def event(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"delta": {"content": text}}]}) + "\n\n"


async def test_answer_is_streamed() -> None:
    comment = ": keep-alive\n\n"
    last = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: {"choices": []}\n\ndata: [DONE]\n\n'
    async with endpoint("200 OK", event("Hel") + comment + event("lo.") + last + event("late")) as (model, requests):
        assert [text async for text in model.reply([{"role": "user", "content": "Hi."}])] == ["Hel", "lo."]
        head, _, body = requests[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/chat/completions ")
        assert b"authorization: bearer secret" in head.lower()
        sent: dict[str, Any] = json.loads(body)
        assert sent == {"model": "small", "messages": [{"role": "user", "content": "Hi."}], "stream": True}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        ("401 Unauthorized", "", ChatRefused),
        ("404 Not Found", "", ChatRefused),
        ("500 Error", "", ConnectionLost),
        ("200 OK", 'data: {"error": {"message": "private words"}}\n\n', ConnectionLost),
        ("200 OK", "data: [1]\n\n", ConnectionLost),
        ("302 Found\r\nLocation: http://127.0.0.1:1/", "", ChatRefused),
        ("204 No Content", "", ChatRefused),
        ("200 OK", "<html>private words</html>", ConnectionLost),
        ("200 OK", "", ConnectionLost),
        ("200 OK", "data: " + "x" * 200_000, ConnectionLost),
        ("200 OK", ": comment\n" * 2_000_000, ConnectionLost),
    ],
)
async def test_failure_is_a_typed_error_without_text(status: str, body: str, kind: type[TTSWorkerError]) -> None:
    async with endpoint(status, body) as (model, _):
        with pytest.raises(kind) as caught:
            [text async for text in model.reply([{"role": "user", "content": "private words"}])]
        assert "private words" not in str(caught.value)
        assert "secret" not in str(caught.value)


async def test_compressed_answer_is_not_expanded() -> None:
    async with endpoint("200 OK\r\nContent-Encoding: gzip", "no gzip") as (model, requests):
        with pytest.raises(ConnectionLost):
            [text async for text in model.reply([{"role": "user", "content": "Hi."}])]
        assert b"accept-encoding: identity" in requests[0].lower()


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=40) | st.recursive(st.none() | st.integers(), st.lists, max_leaves=4).map(json.dumps))
def test_any_event_is_text_or_a_typed_error(data: str) -> None:
    try:
        assert content_of(f"data: {data}") in (None, "")
    except ConnectionLost:
        pass


def test_address_that_is_not_http_is_rejected() -> None:
    with pytest.raises(InvalidRequest):
        ChatEndpoint("ftp://example.com", "small")
