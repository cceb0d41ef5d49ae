"""Recognizes the speech of one user while it arrives.

Interim words are recognized as long as the agent waits for them, final ones at the end of the speech.
Audio is held in memory until it is recognized, at most ``MAX_SPEECH_S``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tts_worker.features.agent.recognizer import Recognizer
from tts_worker.types import BYTES_PER_SAMPLE

MAX_SPEECH_S = 30.0
"""Longer speech is recognized in portions of this length."""
MIN_SPEECH_S = 0.1
"""Shorter audio has no words."""
INTERIM_S = 0.5
"""New audio after which interim words are recognized."""


class SpeechListener:
    """Recognizes what one user says.

    Args:
        recognizer: Recognizes it.
        on_words: Called with words, and whether they are final.
        needs_interim: Whether interim words are awaited: recognizing them costs as much as final ones.
    """

    def __init__(
        self, recognizer: Recognizer, on_words: Callable[[str, bool], None], needs_interim: Callable[[], bool]
    ) -> None:
        self._recognizer = recognizer
        self._on_words = on_words
        self._needs_interim = needs_interim
        self._rate_hz = 48_000
        self._is_active = False
        self._speech = bytearray()
        self._recognized_bytes = 0  # of the speech, by the last interim recognition
        self._finished: deque[tuple[bytes, int]] = deque()
        self._changed = asyncio.Event()

    def begin(self, sample_rate_hz: int) -> None:
        """Speech begins, in PCM of this rate."""
        self.end()
        self._rate_hz = sample_rate_hz
        self._is_active = True

    def add(self, pcm: bytes) -> None:
        """Add audio (s16le, mono); without speech it is dropped."""
        if not self._is_active:
            return
        self._speech += pcm[: len(pcm) // BYTES_PER_SAMPLE * BYTES_PER_SAMPLE]
        if self._duration_s(len(self._speech)) >= MAX_SPEECH_S:
            self._finish()
        self._changed.set()

    def end(self) -> None:
        """Speech has ended: its words are recognized and reported as final, also if there are none."""
        if self._is_active:
            self._is_active = False
            self._finish()
            self._changed.set()

    def _finish(self) -> None:
        self._finished.append((bytes(self._speech), self._rate_hz))
        self._speech.clear()
        self._recognized_bytes = 0

    @staticmethod
    def _is_enough(pcm: bytes, rate_hz: int) -> bool:
        return len(pcm) / BYTES_PER_SAMPLE >= MIN_SPEECH_S * rate_hz

    def _duration_s(self, size: int) -> float:
        return size / BYTES_PER_SAMPLE / self._rate_hz

    async def run(self) -> None:
        """Recognize until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._finished:
                pcm, rate_hz = self._finished.popleft()
                words = await self._recognizer.recognize(pcm, rate_hz) if self._is_enough(pcm, rate_hz) else ""
                self._on_words(words, True)
            new_s = self._duration_s(len(self._speech) - self._recognized_bytes)
            if self._is_active and new_s >= INTERIM_S and self._needs_interim():
                self._recognized_bytes = len(self._speech)
                words = await self._recognizer.recognize(bytes(self._speech), self._rate_hz)
                if not self._finished:  # otherwise the final words follow at once
                    self._on_words(words, False)
                self._changed.set()
