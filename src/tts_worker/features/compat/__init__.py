"""APIs of other vendors, for their unmodified clients: OpenAI, ElevenLabs, Cartesia, CosyVoice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_worker.feature import Feature

if TYPE_CHECKING:
    from tts_worker.server.application import Application


def _add_routes(app: Application) -> None:
    from tts_worker.features.compat.apis import add_apis

    add_apis(app)


FEATURE = Feature(docs="compatibility.md", http=_add_routes)
