"""The log event of an ended session: numbers and names, never its text."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from tts_worker.callers import current_caller
from tts_worker.logs import current_request_id, fields
from tts_worker.types import Ended

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SessionRecord:
    """Collects over the life of a session. ``outcome`` and ``code`` are the last utterance's; ``first_audio_ms`` is
    the first utterance's, measured as the metric is; ``samples`` and ``text_chars`` are sums."""

    session: str
    engine: str
    opened_at_s: float
    request_id: str = field(default_factory=current_request_id)
    transport: str = field(default_factory=lambda: current_caller().transport)
    utterances: int = 0
    outcome: str = "none"
    code: str | None = None
    first_audio_ms: float | None = None
    samples: int = 0
    text_chars: int = 0

    def first_audio(self, seconds: float) -> None:
        if self.first_audio_ms is None:
            self.first_audio_ms = round(seconds * 1000, 1)

    def ended(self, event: Ended) -> None:
        self.utterances += 1
        self.outcome = event.outcome.value
        self.code = event.error.code.value if event.error is not None else None
        self.samples += event.receipt.samples_sent

    def write(self, reason: str, voice: str, now_s: float) -> None:
        """Log the session as one event, at debug level if it was replaced before its first utterance."""
        is_unused = reason == "replaced" and not self.utterances
        log.log(
            logging.DEBUG if is_unused else logging.INFO,
            "session ended",
            extra=fields(
                session=self.session,
                request_id=self.request_id or None,
                transport=self.transport,
                voice=voice,
                engine=self.engine or None,
                reason=reason,
                utterances=self.utterances,
                outcome=self.outcome,
                code=self.code,
                first_audio_ms=self.first_audio_ms,
                samples=self.samples,
                text_chars=self.text_chars,
                duration_s=round(now_s - self.opened_at_s, 3),
            ),
        )
