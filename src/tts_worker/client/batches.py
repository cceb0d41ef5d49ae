"""``client.batches``: many texts in one request, synthesized behind live calls and fetched as they finish."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, cast
from urllib.parse import quote
from uuid import uuid4

import msgspec

from tts_worker.client.arguments import check_seconds, check_str
from tts_worker.client.http_api import HttpApi, connection_error, error_of_response, read_parts
from tts_worker.client.settings import ClientSettings
from tts_worker.errors import ConnectionLost, InvalidRequest, TTSWorkerError, as_exception
from tts_worker.protocol.messages import parse_error
from tts_worker.types import SessionOptions, Skipped

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

ONLY_HTTP = "batches are an interface of HTTP: use the ws:// or wss:// URL of a worker"

_IDLE_S = 30.0
"""A download without data for this time is opened again, in case the connection was lost silently."""
_STEADY_S = 5.0
"""A download that lasted this long is not a failed attempt when it breaks."""
_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 5.0


class UnknownBatch(InvalidRequest):
    """The worker has no such batch: it expired, was deleted, or ended with the worker."""


@dataclass(frozen=True, slots=True)
class BatchText:
    """A text of a batch; None takes the option of the batch.

    Attributes:
        input: The text.
        id: Name of the item in the results: letters, digits and ``._-``, at most 64; its number by default.
        voice: Name of the voice.
        speed: Speaking rate.
        seed: Seed of the random numbers.
        language: BCP-47 tag of the text.
        instructions: How to say it, for voices that take instructions.
        lexicon: Word -> spelling or /phonemes/, or the names of stored lexicons.
    """

    input: str
    id: str | None = None
    voice: str | None = None
    speed: float | None = None
    seed: int | None = None
    language: str | None = None
    instructions: str | None = None
    lexicon: dict[str, Any] | str | None = None


class BatchOptions(TypedDict, total=False):
    """Options of a batch: the defaults of its texts, and the format of the audio.

    Attributes:
        voice: Name of the voice; without it, the worker's default.
        model: Name of the engine.
        speed: Speaking rate.
        seed: Seed of the random numbers.
        language: BCP-47 tag of the texts.
        instructions: How to say them.
        lexicon: Word -> spelling or /phonemes/, or the names of stored lexicons.
        response_format: ``mp3`` (the default), ``wav``, ``opus``, ``flac``, ``pcm``, ``mulaw`` or ``alaw``.
        sample_rate: 8000 to 48000 Hz; by default 24000, and 8000 for mulaw and alaw.
    """

    voice: str | None
    model: str | None
    speed: float
    seed: int
    language: str | None
    instructions: str | None
    lexicon: Mapping[str, Any] | str | None
    response_format: str
    sample_rate: int | None


def batch_options(options: SessionOptions, response_format: str) -> BatchOptions:
    """Return those of a session's options that a batch has, too, and the format."""
    names = {name: "instruct" if name == "instructions" else name for name in BatchOptions.__annotations__}
    of_session = {name: getattr(options, own) for name, own in names.items() if name != "response_format"}
    return cast("BatchOptions", {**of_session, "response_format": response_format})


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A finished item.

    Attributes:
        index: Number of the item, from 0.
        id: Its name.
        audio: The audio file; empty with an error, and in ``BatchProgress.errors``.
        duration_s: Length of the audio.
        skipped: What the voice has skipped of the text, because it cannot speak it.
        error: Why there is no audio.
    """

    index: int
    id: str
    audio: bytes = b""
    duration_s: float = 0.0
    skipped: tuple[Skipped, ...] = ()
    error: TTSWorkerError | None = None


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """State of a batch.

    Attributes:
        id: Its name for the other methods.
        state: "queued", "running" or "done".
        items: Number of items.
        finished: Of these, how many are finished; those that failed count.
        failed: How many failed.
        characters: Length of all texts.
        created_at: When it was submitted.
        expires_at: When the worker deletes it.
        errors: The items that failed.
    """

    id: str
    state: str
    items: int
    finished: int
    failed: int
    characters: int
    created_at: datetime
    expires_at: datetime
    errors: tuple[BatchResult, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether all items are finished."""
        return self.finished == self.items


class BatchAccess(Protocol):
    """How a connector reaches the batches of its worker."""

    async def submit(self, request: dict[str, Any], idempotency_key: str) -> BatchProgress: ...
    async def list(self) -> list[BatchProgress]: ...
    async def get(self, batch: str) -> BatchProgress: ...
    async def cancel(self, batch: str) -> None: ...

    def results(self, batch: str, start: int) -> AsyncGenerator[BatchResult | None, None]:
        """Yield None when the worker has answered, then the results of one connection. Raises TTSWorkerError."""
        ...


class WorkerBatches:
    """The batches of a worker that this API key may see."""

    def __init__(self, access: Callable[[], Awaitable[BatchAccess]]) -> None:
        self._access = access

    async def submit(
        self,
        texts: Iterable[str | BatchText],
        *,
        idempotency_key: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchProgress:
        """Submit texts; the worker synthesizes them behind live calls, also when this program ends.

        When the answer is lost the texts are sent once more, which does not start them twice.

        Args:
            texts: The texts.
            idempotency_key: A repeated call with the same key, texts and options returns the batch of the first one,
                also from another program; by default each call has a new key. 1 to 255 printable ASCII characters.
            **options: See ``BatchOptions``.

        Raises:
            InvalidRequest, TextTooLong: The worker refuses all of it, and says why.
            IllegalCommand: The key was used for other texts or options.
            OverCapacity, Unauthenticated, Forbidden, ConnectionLost, DeadlineExceeded: As ``Client.open``.
        """
        if isinstance(texts, str | bytes | BatchText) or not isinstance(texts, Iterable):
            raise InvalidRequest("texts must be a list or another iterable of texts, not a single one")
        items = [_item(text) for text in texts]
        given = {name: value for name, value in options.items() if value is not None}
        request = {**given, "items": items}
        key = str(uuid4()) if idempotency_key is None else idempotency_key
        if not isinstance(key, str) or not re.fullmatch(r"[!-~]([ -~]{0,253}[!-~])?", key):
            raise InvalidRequest("idempotency_key: 1 to 255 printable ASCII characters")
        try:
            json.dumps(request, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise InvalidRequest("a text or an option of the batch has a value that JSON cannot express") from None
        access = await self._access()
        try:
            return await access.submit(request, key)
        except ConnectionLost:
            return await access.submit(request, key)

    async def list(self) -> list[BatchProgress]:
        """Return all batches. Raises ConnectionLost, DeadlineExceeded, Unauthenticated."""
        return await (await self._access()).list()

    async def get(self, batch: str) -> BatchProgress:
        """Return the progress of a batch. Raises UnknownBatch, and as ``list`` does."""
        check_str(batch, "the id of a batch")
        return await (await self._access()).get(batch)

    async def cancel(self, batch: str) -> None:
        """Cancel a batch and delete its results. Raises UnknownBatch, and as ``list`` does."""
        check_str(batch, "the id of a batch")
        await (await self._access()).cancel(batch)

    async def results(self, batch: str, *, start: int = 0, retry_s: float = 60.0) -> AsyncGenerator[BatchResult, None]:
        """Yield the results in order, each as soon as it is finished.

        When the connection breaks, the download continues after the last complete item.

        Args:
            batch: Its id.
            start: Number of the first item, from 0.
            retry_s: How long a worker that cannot be reached is tried.

        Raises:
            UnknownBatch: There is no such batch, or it was cancelled meanwhile.
            InvalidRequest: An argument is unsuitable.
            ConnectionLost, DeadlineExceeded, ...: The worker cannot be reached; ``start`` continues later.
        """
        check_str(batch, "the id of a batch")
        if not isinstance(start, int) or start < 0:
            raise InvalidRequest("start must be the number of an item, 0 or more")
        check_seconds(retry_s, "retry_s", or_zero=True)
        access = await self._access()
        attempts = _Attempts(retry_s)
        items: int | None = None
        while items is None or start < items:
            answered_at_s: float | None = None
            try:
                items = items if items is not None else (await access.get(batch)).items
                async with aclosing(access.results(batch, start)) as results:
                    async for result in results:
                        if result is None:
                            answered_at_s = _time_s()
                            continue
                        if result.index != start:
                            raise ConnectionLost("the worker sent another item than the next one")
                        start += 1
                        attempts.succeed()
                        yield result
                failure: TTSWorkerError = ConnectionLost("the connection to the worker was lost")
            except TTSWorkerError as error:
                if not error.retryable:
                    raise
                failure = error
            if start == items:
                return
            if answered_at_s is not None and _time_s() - answered_at_s >= _STEADY_S:
                attempts.succeed()
            await attempts.wait(failure)


class _Attempts:
    """Waits between attempts, longer each time.

    Args:
        limit_s: How long to try without a success.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.succeed()

    def succeed(self) -> None:
        self._wait_s = _FIRST_RETRY_S
        self._failing_since_s: float | None = None

    async def wait(self, failure: TTSWorkerError) -> None:
        """Wait for the next attempt. Raises ``failure`` at the limit."""
        now_s = _time_s()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if now_s - self._failing_since_s >= self._limit_s:
            raise failure
        await asyncio.sleep(max(self._wait_s, min(failure.retry_after_s or 0.0, _MAX_RETRY_S)))
        self._wait_s = min(2 * self._wait_s, _MAX_RETRY_S)


def _time_s() -> float:
    return asyncio.get_running_loop().time()


def _item(text: str | BatchText) -> dict[str, Any]:
    if isinstance(text, str):
        return {"input": text}
    if not isinstance(text, BatchText):
        raise InvalidRequest("a text of a batch must be a str or a BatchText")
    values = {name: getattr(text, name) for name in BatchText.__slots__}
    return {name: value for name, value in values.items() if value is not None}


class HttpBatches:
    """Access over HTTP, to the worker of a ``ws://`` URL. See ``BatchAccess``."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        self._api = HttpApi(url, "/v1/batch", settings, _error_of_response)

    async def submit(self, request: dict[str, Any], idempotency_key: str) -> BatchProgress:
        return _parse(await self._api.request("POST", "", request, {"idempotency-key": idempotency_key}), BatchProgress)

    async def list(self) -> list[BatchProgress]:
        answer = await self._api.request("GET")
        return [_parse(batch, BatchProgress) for batch in answer.get("batches", ())]

    async def get(self, batch: str) -> BatchProgress:
        return _parse(await self._api.request("GET", _path(batch)), BatchProgress)

    async def cancel(self, batch: str) -> None:
        await self._api.request("DELETE", _path(batch))

    async def results(self, batch: str, start: int) -> AsyncGenerator[BatchResult | None, None]:
        response = await asyncio.to_thread(
            self._api.open, "GET", f"{_path(batch)}/results?start={start}", None, _IDLE_S
        )
        with closing(response):
            yield None
            async with aclosing(read_parts(response, partial(_next_result, response))) as results:
                async for result in results:
                    yield result


def _path(batch: str) -> str:
    return f"/{quote(batch, safe='')}"


def _error_of_response(body: bytes, status: int, retry_after: str | None) -> TTSWorkerError:
    error = error_of_response(body, status, retry_after)
    return UnknownBatch(error.message) if status == 404 else error


def _parse(data: object, kind: type[T]) -> T:
    """Return JSON of the worker as an object; unknown keys are ignored. Raises ConnectionLost."""
    try:
        return msgspec.convert(data, kind, dec_hook=_error)
    except (msgspec.ValidationError, UnicodeEncodeError, TypeError):
        raise ConnectionLost("the server at this URL is no tts-worker") from None


def _error(kind: type, data: Any) -> TTSWorkerError:
    if kind is not TTSWorkerError:
        raise NotImplementedError  # how a hook tells msgspec that it does not know a type
    return as_exception(parse_error(dict(data)))


def _next_result(response: HTTPResponse) -> BatchResult | None:
    """Read one result; None at the end of the connection, where a part of a line is dropped. Blocks."""
    try:
        line = response.readline()
    except (OSError, HTTPException) as error:
        raise connection_error(error, _IDLE_S) from None
    if not line.endswith(b"\n"):
        return None
    try:
        data = msgspec.json.decode(line)
    except ValueError:
        data = None
    return _parse(data, BatchResult)
