"""Answers from a chat endpoint of OpenAI's shape: ``POST {url}/chat/completions`` with ``stream: true``.

OpenAI, vLLM, llama.cpp, Ollama, LM Studio and others offer it. No text of a conversation is in a log or an error.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from tts_worker.errors import ConnectionLost, DeadlineExceeded, ErrorCode, InvalidRequest, MissingExtra, TTSWorkerError
from tts_worker.features.agent.conversation import Message

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
"""Limit without a byte of the answer: a model may think for a while before its first word."""
MAX_ANSWER_CHARS = 20_000
MAX_LINE_BYTES = 65_536
MAX_ANSWER_BYTES = 16_777_216
"""Bounds of one line of the event stream, and of all of it: an answer of one event per character needs less."""

_NO_STREAM = "the chat model sent something other than a stream of chat completions"


class ChatModel(Protocol):
    """What answers the user."""

    @property
    def name(self) -> str:
        """What the page calls it."""
        ...

    def reply(self, messages: Sequence[Message]) -> AsyncGenerator[str, None]:
        """Answer the last message; yields the text as it is written. Raises TTSWorkerError."""
        ...


class ChatRefused(TTSWorkerError):
    """The chat endpoint refused the request; another try will not help."""

    code = ErrorCode.INVALID_REQUEST


class ChatEndpoint:
    """A model behind a chat endpoint.

    Args:
        url: Address of the API, such as ``http://127.0.0.1:11434/v1``.
        model: Name of the model there.
        api_key: Sent as ``Authorization: Bearer``.

    Raises:
        InvalidRequest: The URL is not one of HTTP.
        MissingExtra: httpx is not installed.
    """

    def __init__(self, url: str, model: str, api_key: str | None = None) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise InvalidRequest("the address of a chat model must begin with http:// or https://")
        try:
            import httpx
        except ImportError:
            raise MissingExtra("a chat model", "agent") from None
        self.name = model
        self._httpx = httpx
        self._client = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/",
            # Without compression: a few bytes could become gigabytes.
            headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {api_key}"} if api_key else {})},
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def reply(self, messages: Sequence[Message]) -> AsyncGenerator[str, None]:
        """Answer the last message; yields the text as it is written.

        Raises:
            ConnectionLost: The endpoint cannot be reached, or fails.
            DeadlineExceeded: It does not answer.
            ChatRefused: It does not accept the key, the model or the messages.
        """
        request = {"model": self.name, "messages": list(messages), "stream": True}
        httpx = self._httpx
        try:
            async with self._client.stream("POST", "chat/completions", json=request) as response:
                _check_status(response.status_code)
                count = 0
                async for line in _lines(response.aiter_raw()):
                    text = content_of(line)
                    if text is None:
                        return
                    count += len(text)
                    if count > MAX_ANSWER_CHARS:
                        return
                    if text:
                        yield text
        except httpx.TimeoutException:
            raise DeadlineExceeded("the chat model did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL):
            raise ConnectionLost("the chat model cannot be reached") from None


async def _lines(parts: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """Yield the lines of an event stream.

    Raises:
        ConnectionLost: It is none, or too long.
    """
    rest = b""
    size = 0
    has_event = False
    async for part in parts:
        size += len(part)
        *lines, rest = (rest + part).split(b"\n")
        if size > MAX_ANSWER_BYTES or len(rest) > MAX_LINE_BYTES:
            raise ConnectionLost("the chat model sent more than an answer can have")
        for line in lines:
            has_event = has_event or line.startswith(b"data:")
            yield line.decode(errors="replace").rstrip("\r")
    if rest:
        has_event = has_event or rest.startswith(b"data:")
        yield rest.decode(errors="replace")
    if not has_event:
        raise ConnectionLost(_NO_STREAM)


def content_of(line: str) -> str | None:
    """Return the text in one line of the event stream; None at its end.

    Raises:
        ConnectionLost: The line is not what a chat endpoint sends.
    """
    if not line.startswith("data:"):
        return ""
    data = line[5:].strip()
    if data == "[DONE]":
        return None
    try:
        event: Any = json.loads(data)
        if "error" in event:
            raise ConnectionLost("the chat model failed while it was answering")
        choices = event["choices"]
        return str(choices[0]["delta"].get("content") or "") if choices else ""
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise ConnectionLost(_NO_STREAM) from None


def _check_status(status: int) -> None:
    if status == 200:
        return
    if status < 400:  # a redirect is not followed: the key and the conversation would go elsewhere
        raise ChatRefused(f"the chat model answered with HTTP status {status}: check its address")
    if status in (401, 403):
        raise ChatRefused("the chat model did not accept the API key")
    if status == 404:
        raise ChatRefused("there is no such chat model, or no chat API at this address")
    if status == 429 or status >= 500:
        raise ConnectionLost(f"the chat model failed with HTTP status {status}")
    raise ChatRefused(f"the chat model refused the request with HTTP status {status}")
