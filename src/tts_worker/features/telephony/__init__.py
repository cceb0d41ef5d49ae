"""Telephone calls: media streams of Twilio and Telnyx, joined to sessions. See ``docs/telephony.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_worker.feature import Feature

if TYPE_CHECKING:
    from tts_worker.server.application import Application


def _add_routes(app: Application) -> None:
    from tts_worker.features.telephony.settings import TelephonySettings

    if app.settings.section(TelephonySettings).max_calls:
        from tts_worker.features.telephony import routes

        routes.add_routes(app)


FEATURE = Feature(docs="telephony.md", http=_add_routes)
