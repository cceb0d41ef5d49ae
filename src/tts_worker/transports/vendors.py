"""Detects which vendor's client sent a request and encodes errors in that vendor's format.

For responses outside of a vendor's own routes: unknown paths, paths that two APIs share, and requests that are rejected
before they reach a route.
"""

from __future__ import annotations

from enum import Enum

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from tts_worker.errors import ErrorInfo
from tts_worker.transports import cartesia_wire, elevenlabs_wire
from tts_worker.transports.responses import error_response as openai_error_response

ELEVENLABS_PREFIX = "/elevenlabs"
"""Prefix under which all of ElevenLabs' routes are served, so a client needs no header to select that API."""

_ELEVENLABS_PATHS = (f"{ELEVENLABS_PREFIX}/", "/v1/text-to-speech/", "/v2/voices")
_CARTESIA_PATHS = ("/tts/", "/voices")


class Vendor(Enum):
    """The vendor of a compatibility API."""

    OPENAI = "openai"
    CARTESIA = "cartesia"
    ELEVENLABS = "elevenlabs"


def vendor_of(scope: Scope) -> Vendor:
    """Detect the vendor by path, else by a header that only its clients send, else OpenAI."""
    path = scope["path"]
    headers = Headers(scope=scope)
    if path.startswith(_ELEVENLABS_PATHS):
        return Vendor.ELEVENLABS
    if path.startswith(_CARTESIA_PATHS):
        return Vendor.CARTESIA
    if "xi-api-key" in headers:
        return Vendor.ELEVENLABS
    if "cartesia-version" in headers:
        return Vendor.CARTESIA
    return Vendor.OPENAI


def error_response(scope: Scope, error: ErrorInfo, status: int | None = None) -> Response:
    """Build an error response for the client of ``scope``. ``status``: None uses the status of the error's code."""
    match vendor_of(scope):
        case Vendor.ELEVENLABS:
            return elevenlabs_wire.error_response(error, status)
        case Vendor.CARTESIA:
            return cartesia_wire.error_response(error, status)
        case Vendor.OPENAI:
            return openai_error_response(error, status)
