"""Which vendor's client sent a request, and an error in the shape that this client reads.

Routes that belong to one vendor decide by themselves; this is for what is answered outside of them: paths that no route
serves, paths that two APIs share, and requests that are refused before they reach a route.
"""

from __future__ import annotations

from enum import Enum

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from tts_worker.errors import ErrorInfo
from tts_worker.transports import cartesia_wire, elevenlabs_wire
from tts_worker.transports.responses import error_response

ELEVENLABS_PREFIX = "/elevenlabs"
"""Serves all of ElevenLabs' routes, so that a client needs no header to get that vendor's answers."""

_ELEVENLABS_PATHS = (f"{ELEVENLABS_PREFIX}/", "/v1/text-to-speech/", "/v2/voices")
_CARTESIA_PATHS = ("/tts/", "/voices")


class Vendor(Enum):
    OPENAI = "openai"
    CARTESIA = "cartesia"
    ELEVENLABS = "elevenlabs"


def vendor_of(scope: Scope) -> Vendor:
    """The vendor by the path, else by a header that only its clients send, else OpenAI."""
    path, headers = scope["path"], Headers(scope=scope)
    if path.startswith(_ELEVENLABS_PATHS):
        return Vendor.ELEVENLABS
    if path.startswith(_CARTESIA_PATHS):
        return Vendor.CARTESIA
    if "xi-api-key" in headers:
        return Vendor.ELEVENLABS
    if "cartesia-version" in headers:
        return Vendor.CARTESIA
    return Vendor.OPENAI


def refusal(scope: Scope, error: ErrorInfo, status: int | None = None) -> Response:
    """An error response for the client of ``scope``. ``status``: None takes the status of the error's code."""
    match vendor_of(scope):
        case Vendor.ELEVENLABS:
            return elevenlabs_wire.refusal(error, status)
        case Vendor.CARTESIA:
            return cartesia_wire.refusal(error, status)
        case Vendor.OPENAI:
            return error_response(error, status)
