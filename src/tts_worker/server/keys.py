"""API keys of a running worker: comparison, rate limits, delays after wrong keys, and rotation without a restart.

Keys are compared in constant time by their SHA-256. An address that sends many wrong keys gets delayed responses; a
valid key is never delayed. Neither valid nor wrong keys are logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tts_worker.callers import ALL_SCOPES, Caller
from tts_worker.errors import ConfigError, QuotaExceeded, TTSWorkerError, Unauthenticated
from tts_worker.logs import current_request_id, fields, hide_secrets
from tts_worker.server.file_watch import FileWatch
from tts_worker.server.rates import ThrottledLog
from tts_worker.server.tokens import PREFIX as TOKEN_PREFIX
from tts_worker.server.tokens import TokenSigner
from tts_worker.session.quotas import Quotas
from tts_worker.settings.keys import ApiKey, read_key_file

log = logging.getLogger(__name__)

FREE_FAILURES = 10
"""Wrong keys of one address within ``_WINDOW_S`` that are rejected without delay."""

_WINDOW_S = 60.0
_DELAY_S = 1.0

_MAX_DELAYED = 64
"""Rejections delayed at the same time; more are rejected at once, as each holds a connection."""

_MAX_ADDRESSES = 4_096
"""Addresses whose wrong keys are counted; beyond that the one not seen for longest is forgotten."""

_LOG_EVERY = 100
"""Of the wrong keys of an address after the free ones, each so many is logged."""


@dataclass(slots=True)
class _FailureWindow:
    start_s: float
    count: int = 0


class _ValidKeys(NamedTuple):
    """The valid keys, replaced as a whole: by the SHA-256 of each, and by the common name of a certificate."""

    by_digest: tuple[tuple[bytes, ApiKey], ...] = ()
    by_certificate: Mapping[str, ApiKey] = MappingProxyType({})


class KeyRing:
    """The valid API keys. All methods run on one event loop, but ``replace`` may run on any thread.

    Args:
        keys: API keys.
        required: Reject callers without a key even while ``keys`` is empty (a key file may be).
        on_failure: Called with transport and reason ("missing", "wrong", "rate") of every rejection.
        quotas: Counts the requests of keys; None counts them in memory.
        clock: Monotonic, in seconds.
        tokens: Reads the tokens that stand for a key.

    Attributes:
        tokens: See above.
    """

    def __init__(
        self,
        keys: Iterable[ApiKey] = (),
        *,
        required: bool = False,
        on_failure: Callable[[str, str], None] = lambda transport, reason: None,
        quotas: Quotas | None = None,
        clock: Callable[[], float] = time.monotonic,
        tokens: TokenSigner | None = None,
    ) -> None:
        self.tokens = tokens or TokenSigner()
        self.tokens.digest_of = self._digest_of
        self._valid = _ValidKeys()
        self._required = required
        self._on_failure = on_failure
        self._rate_log = ThrottledLog(log, interval_s=1.0)
        self._clock = clock
        self._quotas = quotas or Quotas(clock)
        self._failures: OrderedDict[str, _FailureWindow] = OrderedDict()
        self._delayed = 0  # rejections being delayed
        self.replace(keys)

    @property
    def required(self) -> bool:
        """Whether a caller needs a key."""
        return self._required or any(self._valid)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Replace the valid keys. Open sessions stay open."""
        keys = tuple(keys)
        hide_secrets(key.key.get_secret_value() for key in keys if key.certificate is None and key.key is not None)
        self._valid = _ValidKeys(
            tuple((key.digest, key) for key in keys if key.certificate is None),
            {key.certificate: key for key in keys if key.certificate is not None},
        )

    async def authenticate(
        self,
        key: str | None,
        transport: str,
        *,
        certificate: str | None = None,
        counted: bool = True,
        origin: str | None = None,
    ) -> Caller | None:
        """Return the caller that a key identifies, or None if the key is missing or wrong.

        Args:
            key: The key that the client sent, or a token.
            transport: Name of the API, for metrics.
            certificate: Common name of the client's verified certificate; identifies a client without a key.
            counted: Count the request against the key's ``requests_per_minute``.
            origin: The page of the request, if it has one.

        Raises:
            QuotaExceeded: The key has exceeded its request rate.
        """
        if not self.required:
            return Caller(transport=transport)
        grant = None
        if key is None:
            valid_key = self._valid.by_certificate.get(certificate or "")
        elif key.startswith(TOKEN_PREFIX):
            grant = self.tokens.read(key)
            valid_key = self._named(grant.key) if grant is not None and grant.is_for(origin) else None
        else:
            valid_key = self._match(key)
        if valid_key is None:
            return None
        if counted:
            await self._count(valid_key, transport)
        caller = self._caller(valid_key, transport)
        return caller if grant is None else caller.holding(grant.id, grant.scopes, grant.sessions)

    def caller_named(self, name: str | None, transport: str) -> Caller | None:
        """Return the caller of a key by its name; None if there is no such key now.

        Without a name: the caller of a worker that requires no key.
        """
        if name is None:
            return None if self.required else Caller(transport=transport)
        key = self._named(name)
        return None if key is None else self._caller(key, transport)

    def _digest_of(self, name: str) -> bytes:
        key = self._named(name)
        return b"" if key is None else key.digest

    def _named(self, name: str) -> ApiKey | None:
        valid = self._valid
        known = (*(key for _, key in valid.by_digest), *valid.by_certificate.values())
        return next((key for key in known if key.name == name), None)

    @staticmethod
    def _caller(valid_key: ApiKey, transport: str) -> Caller:
        return Caller(
            key=valid_key.name,
            scopes=frozenset(valid_key.scopes & ALL_SCOPES),
            max_sessions=valid_key.max_sessions,
            transport=transport,
            max_voices=valid_key.max_voices,
            max_recording_bytes=valid_key.max_recording_bytes,
            characters_per_minute=valid_key.characters_per_minute,
            source_seconds_per_minute=valid_key.source_seconds_per_minute,
        )

    @property
    def knows_certificates(self) -> bool:
        """Whether certificates of clients identify callers."""
        return bool(self._valid.by_certificate)

    def _match(self, candidate: str) -> ApiKey | None:
        digest = hashlib.sha256(candidate.encode("utf-8", "surrogatepass")).digest()
        # Compare every key: the time reveals nothing about which one matches.
        matches = [key for valid_digest, key in self._valid.by_digest if hmac.compare_digest(digest, valid_digest)]
        return matches[0] if matches else None

    async def _count(self, key: ApiKey, transport: str) -> None:
        if key.requests_per_minute is None:
            return
        if (wait_s := await self._quotas.take_request(key.name, key.requests_per_minute)) > 0:
            self._on_failure(transport, "rate")
            self._rate_log.warning(
                "rejected over %s: the key %s has exceeded its requests per minute",
                transport,
                key.name,
                extra=fields(transport=transport, reason="rate", key=key.name, request_id=current_request_id() or None),
            )
            raise QuotaExceeded(
                f'the API key "{key.name}" has exceeded its requests per minute', retry_after_s=round(wait_s + 0.5)
            )

    # -- wrong keys ---------------------------------------------------------------------------------------------------

    async def rejection(self, key: str | None, address: str, transport: str) -> TTSWorkerError:
        """Return the error for a caller without a valid key, after a delay if its address sent many wrong keys."""
        reason = "missing" if key is None else "wrong"
        self._on_failure(transport, reason)
        count = self._count_failure(address)
        if count <= FREE_FAILURES or count % _LOG_EVERY == 0:
            log.warning(
                "rejected over %s: API key %s, %d in the last minute from %s",
                transport,
                reason,
                count,
                address,
                extra=fields(
                    transport=transport, reason=reason, client=address, request_id=current_request_id() or None
                ),
            )
        if count > FREE_FAILURES:
            if self._delayed >= _MAX_DELAYED:
                return QuotaExceeded("too many requests without a valid API key", retry_after_s=_WINDOW_S)
            self._delayed += 1
            try:
                await asyncio.sleep(_DELAY_S)
            finally:
                self._delayed -= 1
        if key is None:
            return Unauthenticated("this worker needs an API key: Authorization: Bearer <key>")
        return Unauthenticated("the API key is not valid")

    def _count_failure(self, address: str) -> int:
        now_s = self._clock()
        window = self._failures.pop(address, None)
        if window is None or now_s - window.start_s > _WINDOW_S:
            window = _FailureWindow(now_s)
        window.count += 1
        self._failures[address] = window
        if len(self._failures) > _MAX_ADDRESSES:
            self._failures.popitem(last=False)
        return window.count


class KeyFileWatch(FileWatch):
    """Reads the keys of a ring again when the key file changes. An invalid file changes nothing.

    Args:
        ring: The key ring.
        file: The key file.
        static_keys: Keys that stay valid besides those of the file.
    """

    def __init__(self, ring: KeyRing, file: Path, static_keys: tuple[ApiKey, ...] = ()) -> None:
        super().__init__(file)
        self._ring = ring
        self._file = file
        self._static_keys = static_keys

    def read_again(self) -> None:
        try:
            content = read_key_file(self._file)
        except ConfigError as error:
            log.error("the API keys are unchanged: %s", error.message)
            return
        self._ring.replace((*self._static_keys, *content.keys))
        self._ring.tokens.set_secret(content.token_secret)
        log.info("API keys reloaded: %s", ", ".join(key.name for key in content.keys) or "none")
