"""API keys of a running worker: comparison, rates, wrong keys, and rotation without a restart.

Owns what callers offer against what is valid now. A key is compared in constant time by its SHA-256. An address that
sends many wrong keys gets its refusals late; a valid key is never held up by what others do. Neither a key nor what was
offered is ever logged. Knows no request and no call.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import anyio

from tts_worker.callers import ALL_SCOPES, Caller
from tts_worker.errors import ConfigError, QuotaExceeded, TTSWorkerError, Unauthenticated
from tts_worker.settings.keys import ApiKey, read_key_file

log = logging.getLogger(__name__)

FREE_FAILURES = 10
"""Wrong keys of one address within ``_WINDOW_S`` that are refused at once."""
_WINDOW_S = 60.0
_DELAY_S = 1.0
_MAX_DELAYED = 64
_MAX_ADDRESSES = 4_096
_LOG_EVERY = 100
_RELOAD_INTERVAL_S = 1.0


@dataclass(slots=True)
class _Bucket:
    """Requests that a key has left: ``per_minute`` at most, refilled evenly."""

    per_minute: float
    left: float
    at_s: float

    def take(self, now_s: float) -> float:
        """Take one; returns after how many seconds there is one, 0 if it was taken."""
        capacity = max(1.0, self.per_minute)
        self.left = min(capacity, self.left + (now_s - self.at_s) * self.per_minute / 60)
        self.at_s = now_s
        if self.left >= 1:
            self.left -= 1
            return 0.0
        return (1 - self.left) * 60 / self.per_minute


@dataclass(slots=True)
class _Failures:
    since_s: float
    count: int = 0


class KeyRing:
    """The keys that are valid now. All methods belong to one event loop.

    Args:
        keys: API keys.
        required: Refuse callers without a key even while ``keys`` is empty (a key file may be).
        on_failure: Told transport and reason ("missing", "wrong", "rate") of every refusal.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        keys: Iterable[ApiKey] = (),
        *,
        required: bool = False,
        on_failure: Callable[[str, str], None] = lambda transport, reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys: tuple[tuple[bytes, ApiKey], ...] = ()
        self._required = required
        self._on_failure = on_failure
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._delayed = 0
        self.replace(keys)

    @property
    def required(self) -> bool:
        """Whether a caller needs a key."""
        return self._required or bool(self._keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """From now on these are valid. Sessions that are open stay."""
        self._keys = tuple((key.digest, key) for key in keys)
        limits = {key.name: key.requests_per_minute for _, key in self._keys}
        self._buckets = {n: b for n, b in self._buckets.items() if limits.get(n) == b.per_minute}

    def caller(self, offered: str | None, transport: str, *, counted: bool = True) -> Caller | None:
        """The caller that a key stands for; None if it is missing or wrong.

        Args:
            counted: The request counts for the key's ``requests_per_minute``.

        Raises:
            QuotaExceeded: The key has none left.
        """
        if not self.required:
            return Caller(transport=transport)
        key = self._match(offered)
        if key is None:
            return None
        if counted:
            self._count(key, transport)
        return Caller(key.name, frozenset(key.scopes & ALL_SCOPES), key.max_sessions, transport)

    def _match(self, offered: str | None) -> ApiKey | None:
        if offered is None:
            return None
        digest = hashlib.sha256(offered.encode("utf-8", "surrogatepass")).digest()
        # Every key is compared, so the time tells nothing about which one came close.
        matches = [key for known, key in self._keys if hmac.compare_digest(digest, known)]
        return matches[0] if matches else None

    def _count(self, key: ApiKey, transport: str) -> None:
        if key.requests_per_minute is None:
            return
        now_s = self._clock()
        bucket = self._buckets.setdefault(
            key.name, _Bucket(key.requests_per_minute, max(1.0, key.requests_per_minute), now_s)
        )
        if (wait_s := bucket.take(now_s)) > 0:
            self._on_failure(transport, "rate")
            raise QuotaExceeded(f'the API key "{key.name}" has no requests left', retry_after_s=round(wait_s + 0.5))

    # -- wrong keys ---------------------------------------------------------------------------------------------------

    async def refusal(self, offered: str | None, address: str, transport: str) -> TTSWorkerError:
        """What a caller without a valid key is told. Comes late to an address that sent many wrong ones."""
        reason = "missing" if offered is None else "wrong"
        self._on_failure(transport, reason)
        count = self._note_failure(address)
        if count <= FREE_FAILURES or count % _LOG_EVERY == 0:
            log.warning("refused over %s: API key %s, %d in the last minute from %s", transport, reason, count, address)
        if count > FREE_FAILURES:
            if self._delayed >= _MAX_DELAYED:
                return QuotaExceeded("too many requests without a valid API key", retry_after_s=_WINDOW_S)
            self._delayed += 1
            try:
                await asyncio.sleep(_DELAY_S)
            finally:
                self._delayed -= 1
        if offered is None:
            return Unauthenticated("this worker needs an API key: Authorization: Bearer <key>")
        return Unauthenticated("the API key is not valid")

    def _note_failure(self, address: str) -> int:
        now_s = self._clock()
        failures = self._failures.pop(address, None)
        if failures is None or now_s - failures.since_s > _WINDOW_S:
            failures = _Failures(now_s)
        failures.count += 1
        self._failures[address] = failures
        if len(self._failures) > _MAX_ADDRESSES:
            self._failures.popitem(last=False)
        return failures.count


class KeyFileWatch:
    """Puts the keys of a file into a ring when the file changes, or when ``reload`` is called. A file that cannot be
    read leaves the keys as they are."""

    def __init__(self, ring: KeyRing, file: Path, more: tuple[ApiKey, ...] = ()) -> None:
        self._ring = ring
        self._file = file
        self._more = more
        self._seen = self._stamp()
        self._asked = asyncio.Event()

    def reload(self) -> None:
        """Read the file again now."""
        self._asked.set()

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            with anyio.move_on_after(_RELOAD_INTERVAL_S):
                await self._asked.wait()
            stamp = await asyncio.to_thread(self._stamp)
            if stamp != self._seen or self._asked.is_set():
                self._asked.clear()
                self._seen = stamp
                await self._read()

    async def _read(self) -> None:
        try:
            keys = await asyncio.to_thread(read_key_file, self._file)
        except ConfigError as error:
            log.error("the API keys stay as they are: %s", error.message)
            return
        self._ring.replace((*self._more, *keys))
        log.info("API keys are read again: %s", ", ".join(key.name for key in keys) or "none")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
