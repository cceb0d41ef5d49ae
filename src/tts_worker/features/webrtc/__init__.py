"""Speech on a WebRTC track, with the worker's protocol on a data channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_worker.feature import Extra, Feature

if TYPE_CHECKING:
    from tts_worker.server.application import Application


def _add_routes(app: Application) -> None:
    from tts_worker.features.webrtc.settings import WebRtcSettings

    if app.settings.section(WebRtcSettings).enabled:
        from tts_worker.features.webrtc import offers

        offers.add_routes(app)


FEATURE = Feature(
    docs="webrtc.md",
    http=_add_routes,
    extras={"webrtc": Extra(("aiortc",), "speech in a browser over WebRTC")},
)
