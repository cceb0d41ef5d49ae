"""Short-lived tokens in the shapes of ElevenLabs and Cartesia, over the worker's own (``server.tokens``)."""

from __future__ import annotations

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tts_worker.protocol.json_codec import parse_object
from tts_worker.server.routing import Routes
from tts_worker.server.tokens import MAX_S, TokenRequest, TokenSigner, issue
from tts_worker.server.validation import Fields, request_body, validate

ELEVENLABS_PATH = "/v1/single-use-token/"
CARTESIA_PATH = "/access-token"
_ELEVENLABS_S = 900
_NO_STORE = {"cache-control": "no-store"}


class CartesiaToken(Fields):
    """Body of ``POST /access-token``. ``grants`` has no effect: a token may speak, and nothing else."""

    expires_in: int = Field(60, ge=1, le=MAX_S)


def elevenlabs_router(signer: TokenSigner, prefix: str = "") -> Routes:
    """Return ElevenLabs' route. Its tokens last 15 minutes, and are used for one session at a time."""
    routes = Routes(prefix=prefix, include_in_schema=not prefix, tag="ElevenLabs")

    @routes.post(f"{ELEVENLABS_PATH}{{kind}}", summary="Give out a short-lived token to ElevenLabs clients")
    async def token(kind: str) -> Response:
        text, _ = issue(signer, TokenRequest(seconds=_ELEVENLABS_S))
        return JSONResponse({"token": text}, headers=_NO_STORE)

    return routes


def cartesia_router(signer: TokenSigner) -> Routes:
    """Return Cartesia's route. Sessions are limited by the key: a context is one."""
    routes = Routes(tag="Cartesia")

    @routes.post(
        CARTESIA_PATH,
        summary="Give out a short-lived token to Cartesia clients",
        openapi_extra=lambda: request_body(CartesiaToken),
    )
    async def token(request: Request) -> Response:
        body = await request.body()
        wanted = validate(CartesiaToken, parse_object(body, "body") if body.strip() else {})
        text, _ = issue(signer, TokenRequest(seconds=wanted.expires_in, sessions=None))
        return JSONResponse({"token": text}, headers=_NO_STORE)

    return routes
