"""``POST /webrtc/offer`` and the web page that uses it.

``peer``, which needs the extra "webrtc", is imported with the first offer.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tts_worker.errors import InvalidRequest, MissingExtra, OverCapacity
from tts_worker.features.webrtc.settings import WebRtcSettings
from tts_worker.protocol.json_codec import parse_object, parse_start
from tts_worker.server.application import Application
from tts_worker.server.limits import ApiLimits
from tts_worker.server.responses import error_response
from tts_worker.server.validation import Fields, request_body, validate
from tts_worker.session.hub import SessionHub

if TYPE_CHECKING:
    from tts_worker.features.webrtc.peer import Peer

_RETRY_AFTER_S = 1.0


class Offer(Fields):
    """The body of an offer. ``session`` holds the fields of a ``start`` message."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    sdp: str = Field(max_length=200_000)
    type: Literal["offer"]
    session: dict[str, Any] = Field(default_factory=dict)


class PeerRegistry:
    """The peers of this process.

    Raises:
        MissingExtra: The extra "webrtc" is not installed.
    """

    def __init__(self, hub: SessionHub, settings: WebRtcSettings, limits: ApiLimits) -> None:
        try:
            from tts_worker.features.webrtc import peer as webrtc_peer
        except ModuleNotFoundError as error:
            if error.name not in ("aiortc", "av"):
                raise
            raise MissingExtra("WebRTC", "webrtc") from None
        self._webrtc_peer = webrtc_peer
        self._hub = hub
        self._settings = settings
        self._limits = limits
        self.peers: set[Peer] = set()
        self._joining = 0
        self.negotiation = asyncio.Lock()

    async def join(self, offer: Offer) -> dict[str, Any]:
        """Answer an offer. On an error nothing stays allocated.

        Raises:
            OverCapacity: All peers are taken.
            InvalidRequest: The offer or an option is invalid.
            TTSWorkerError: The errors of ``SessionHub.admit``.
        """
        options = self._webrtc_peer.track_options(parse_start(offer.session).options())
        if len(self.peers) + self._joining >= self._settings.max_peers:
            raise OverCapacity(f"all {self._settings.max_peers} WebRTC peers are taken", retry_after_s=_RETRY_AFTER_S)
        self._joining += 1
        try:
            session = await self._hub.admit(options)
            try:
                peer = self._webrtc_peer.Peer(
                    self._hub, session, options, self._settings, self._limits, self.peers.discard
                )
            except BaseException:
                session.close("failed")
                raise
            self.peers.add(peer)
        finally:
            self._joining -= 1
        return {"type": "answer", "sdp": await peer.answer(offer.sdp, self.negotiation), "session": session.id}


PAGE_PATH = "/webrtc"
PAGE = "index.html"


def add_routes(app: Application) -> None:
    """Add the offer's route and, if there is a web page, the page at ``/webrtc``."""
    app.paths.transports[PAGE_PATH] = "webrtc"
    registry: PeerRegistry | None = None  # built with the first offer

    @app.routes.post(
        "/webrtc/offer",
        summary="A WebRTC offer: audio on a track, the worker's protocol on a data channel",
        openapi_extra=partial(request_body, Offer),
    )
    async def answer_offer(request: Request) -> Response:
        nonlocal registry
        try:
            offer = validate(Offer, parse_object(await request.body(), "body"))
            if registry is None:
                registry = PeerRegistry(app.hub, app.settings.section(WebRtcSettings), app.limits)
            return JSONResponse(await registry.join(offer))
        except InvalidRequest as error:
            return error_response(error.info, 422)

    if app.web.has(PAGE):
        app.paths.public.add(PAGE_PATH)

        @app.routes.get(PAGE_PATH, include_in_schema=False)
        async def page() -> Response:
            return app.web.page(PAGE)
