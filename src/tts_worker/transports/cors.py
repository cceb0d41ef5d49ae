"""Cross-origin requests: what a browser asks before it sends one, and what lets a page read the answer (CORS).

Only for origins that are allowed, which the ``Gate`` decides. The origin is named, never ``*``, and no credentials are
allowed: a key travels in a header that the page sets, never in a cookie.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Scope, Send

METHODS = ("GET", "HEAD", "POST")

REQUEST_HEADERS = frozenset(
    (
        *("accept", "authorization", "cache-control", "content-type", "idempotency-key", "range", "user-agent"),
        *("x-api-key", "xi-api-key", "cartesia-version", "x-request-id"),
    )
)
REQUEST_HEADER_PREFIXES = ("openai-", "x-stainless-", "x-fern-")
"""What the vendors' SDKs send besides: OpenAI's and Cartesia's are made by Stainless, ElevenLabs' by Fern."""

RESPONSE_HEADERS = ("x-request-id", "x-sample-rate", "x-synthetic", "retry-after", "www-authenticate")
"""What a page may read besides the status and the content type."""

MAX_AGE_S = 600
"""How long a browser need not ask again."""


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks what a page may send. It asks without a key."""
    return scope["method"] == "OPTIONS" and "access-control-request-method" in Headers(scope=scope)


def preflight_response(scope: Scope) -> Response:
    """Names the methods, and those of the headers asked for that are allowed; the browser compares."""
    asked = Headers(scope=scope).get("access-control-request-headers", "").lower().split(",")
    allowed = [name for name in (name.strip() for name in asked) if _is_allowed(name)]
    headers = {"Access-Control-Allow-Methods": ", ".join(METHODS), "Access-Control-Max-Age": str(MAX_AGE_S)}
    if allowed:
        headers["Access-Control-Allow-Headers"] = ", ".join(allowed)
    return Response(status_code=204, headers=headers)


def varying_by_origin(send: Send, allowed_origin: str | None) -> Send:
    """``send`` with the headers that let pages of ``allowed_origin`` read the response; None allows no origin.

    Either way a cache learns that the response depends on the origin.
    """

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": list(message.get("headers", ()))}
            headers = MutableHeaders(scope=message)
            headers.add_vary_header("Origin")
            if allowed_origin is not None:
                headers["Access-Control-Allow-Origin"] = allowed_origin
                headers["Access-Control-Expose-Headers"] = ", ".join(RESPONSE_HEADERS)
        await send(message)

    return send_with_headers


def _is_allowed(header: str) -> bool:
    return header in REQUEST_HEADERS or header.startswith(REQUEST_HEADER_PREFIXES)
