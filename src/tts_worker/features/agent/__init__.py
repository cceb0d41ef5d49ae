"""The talking agent: a page on which one speaks with a language model, or with a script (``tts-worker agent``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_worker.feature import Command, Extra, Feature

if TYPE_CHECKING:
    from tts_worker.server.application import Application


def _add_routes(app: Application) -> None:
    if app.settings.server.web_page:
        from tts_worker.features.agent import routes

        routes.add_scripted_agent(app)


FEATURE = Feature(
    docs="agent.md",
    http=_add_routes,
    web=Path(__file__).parent / "web",
    commands={
        "agent": Command(
            "serve a page on which one speaks with an agent, and interrupts it",
            "tts_worker.features.agent.command",
            (
                "agent --open",
                "agent --whisper base.en --whisper-download",
                "agent --chat-url http://127.0.0.1:11434/v1 --chat-model llama3.2",
            ),
        )
    },
    extras={
        "agent": Extra(("httpx",), "tts-worker agent: speak with a language model"),
        "whisper": Extra(("faster_whisper",), "speech recognition of tts-worker agent"),
    },
)
