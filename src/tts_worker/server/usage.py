"""``GET /v1/usage``: what the API keys have used of this worker, by day."""

from __future__ import annotations

from datetime import datetime, timezone

from starlette.responses import JSONResponse, Response

from tts_worker.callers import ApiScope, current_caller
from tts_worker.server.routing import Routes
from tts_worker.session.hub import SessionHub

PATH = "/v1/usage"


def add_routes(routes: Routes, hub: SessionHub) -> None:
    """Add the route. A key sees its own usage, one with the scope ``admin`` that of all."""
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")

    @routes.get(PATH, summary="What this API key has used of this worker since its start, by day")
    async def usage() -> Response:
        caller = current_caller()
        sees_all = ApiScope.ADMIN in caller.scopes
        used = [
            {
                "day": day.isoformat(),
                "key": key,
                "sessions": each.sessions,
                "characters": each.characters,
                "audio_seconds": round(each.audio_s, 3),
                "source_seconds": round(each.source_s, 3),
            }
            for day, key, each in hub.usage
            if sees_all or key == caller.key
        ]
        return JSONResponse({"since": since, "usage": used})
