"""Short-lived tokens for browsers: ``POST /v1/tokens`` gives one out to the holder of a key.

A token is accepted wherever its key is, with at most the rights of the key: a page that has one can be read by anyone
without the key becoming known. It is a signed statement, so that nothing is stored: workers that share a key file with
``token_secret`` accept each other's tokens, other workers only their own, until they restart. A token ends with its
time, or when its key is removed or replaced.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tts_worker.callers import ApiScope, current_caller
from tts_worker.errors import Forbidden, InvalidRequest
from tts_worker.protocol.json_codec import parse_object
from tts_worker.server.audit import audited
from tts_worker.server.routing import Routes
from tts_worker.server.validation import Fields, request_body, validate

PATH = "/v1/tokens"
PREFIX = "ttst_"
"""How tokens begin; no key of a worker should."""
MAX_S = 3_600
DEFAULT_S = 300


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token says.

    Attributes:
        id: Tells tokens apart, to count their sessions.
        key: Name of the key that it stands for.
        scopes: Permissions, at most those of the key.
        expires_at_s: Unix time.
        sessions: Sessions that may be open with it at the same time; None for the limit of the key.
        origin: The page that may use it, as its ``Origin``; None for any, and for clients that are no pages.
    """

    id: str
    key: str
    scopes: frozenset[ApiScope]
    expires_at_s: float
    sessions: int | None = None
    origin: str | None = None

    def is_for(self, origin: str | None) -> bool:
        """Whether a request from a page of this origin, or from none, may use the token."""
        return self.origin is None or (origin is not None and origin.rstrip("/").lower() == self.origin)


class TokenSigner:
    """Signs tokens and reads them.

    Args:
        secret: Shared by workers that accept each other's tokens; None chooses one for this process.
        clock: Unix time, in seconds.

    Attributes:
        digest_of: Returns what changes if another key gets a name. The key ring sets it.
    """

    def __init__(self, secret: SecretStr | None = None, clock: Callable[[], float] = time.time) -> None:
        self.digest_of: Callable[[str], bytes] = lambda name: b""
        self._own_secret = secrets.token_bytes(32)
        self._clock = clock
        self.set_secret(secret)

    def set_secret(self, secret: SecretStr | None) -> None:
        """Change the shared secret. Tokens that were signed with another one are no longer valid."""
        shared = None if secret is None else secret.get_secret_value().encode()
        self._secret = self._own_secret if shared is None else hashlib.sha256(shared).digest()

    @property
    def now_s(self) -> float:
        """Unix time."""
        return self._clock()

    def sign(self, grant: Grant) -> str:
        """Return the token of a grant: letters, digits, ``-``, ``_`` and ``.``, so that it fits where a key does."""
        fields: dict[str, Any] = {
            "i": grant.id,
            "k": grant.key,
            "s": sorted(scope.value for scope in grant.scopes),
            "e": grant.expires_at_s,
            "n": grant.sessions,
            "o": grant.origin,
            "d": self._mark_of(grant.key),
        }
        statement = json.dumps(fields, separators=(",", ":")).encode()
        return f"{PREFIX}{_encode(statement)}.{_encode(self._signature(statement))}"

    def read(self, token: str) -> Grant | None:
        """Return what a valid token says; None if it is none, was signed elsewhere, or has ended."""
        statement, _, signature = token.removeprefix(PREFIX).partition(".")
        try:
            body = _decode(statement)
            if not hmac.compare_digest(_decode(signature), self._signature(body)):
                return None
            said = json.loads(body)
            scopes = frozenset(map(ApiScope, said["s"]))
        except (ValueError, binascii.Error):
            return None
        if said["e"] <= self._clock() or said["d"] != self._mark_of(said["k"]):
            return None
        return Grant(said["i"], said["k"], scopes, said["e"], said["n"], said["o"])

    def _mark_of(self, key: str) -> str:
        """Return what tells a key from others of its name, but nothing about it."""
        return hmac.new(self._secret, b"key:" + self.digest_of(key), "sha256").hexdigest()[:16]

    def _signature(self, statement: bytes) -> bytes:
        return hmac.digest(self._secret, statement, "sha256")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _one_origin(value: str) -> str:
    scheme, separator, rest = value.rstrip("/").partition("://")
    if not separator or scheme not in ("http", "https") or not rest or "/" in rest:
        raise ValueError("must be an origin such as https://app.example.com")
    return f"{scheme}://{rest}".lower()


class TokenRequest(Fields):
    """Body of ``POST /v1/tokens``.

    Attributes:
        seconds: How long the token is valid.
        scopes: Its permissions.
        sessions: Sessions that may be open with it at the same time; null for the limit of the key.
        origin: The page that may use it; null for any.
    """

    seconds: int = Field(DEFAULT_S, ge=1, le=MAX_S)
    scopes: frozenset[ApiScope] = Field(frozenset({ApiScope.SPEAK}), min_length=1)
    sessions: int | None = Field(1, ge=1, le=1_000)
    origin: Annotated[str, AfterValidator(_one_origin)] | None = Field(None, max_length=256)


def issue(signer: TokenSigner, wanted: TokenRequest) -> tuple[str, Grant]:
    """Give out a token to the current caller.

    Raises:
        InvalidRequest: The worker needs no key.
        Forbidden: The caller lacks a scope, or is itself the holder of a token.
    """
    caller = current_caller()
    if caller.key is None:
        raise InvalidRequest("this worker needs no API key, and so no token")
    if caller.token is not None:
        raise Forbidden("a token gives out no tokens")
    for scope in wanted.scopes:
        caller.require(scope)
    expires_at_s = signer.now_s + wanted.seconds
    grant = Grant(secrets.token_urlsafe(9), caller.key, wanted.scopes, expires_at_s, wanted.sessions, wanted.origin)
    with audited("issue_token", grant.id, min(wanted.scopes)):
        return signer.sign(grant), grant


def add_routes(routes: Routes, signer: TokenSigner) -> None:
    """Add the route."""

    @routes.post(
        PATH, status_code=201, summary="Give out a short-lived token", openapi_extra=lambda: request_body(TokenRequest)
    )
    async def token(request: Request) -> Response:
        body = await request.body()
        wanted = validate(TokenRequest, parse_object(body, "body") if body.strip() else {})
        text, grant = issue(signer, wanted)
        return JSONResponse(
            {
                "token": text,
                "expires_at": round(grant.expires_at_s, 3),
                "scopes": sorted(scope.value for scope in grant.scopes),
                "sessions": grant.sessions,
                "origin": grant.origin,
            },
            201,
            {"cache-control": "no-store"},
        )
