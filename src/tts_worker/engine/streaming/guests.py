"""Voices made of recordings that callers bring along, where one engine finds them.

Filled on the enrolment thread (``models.enrolment.Learner``), read on the engine's: each entry is put in whole and
never changed, so neither waits for the other. Nothing is written to disk. Outlives an engine that is rebuilt after a
fault. It must not know who brought a recording nor how long its voice is kept.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tts_worker.audio.decode import Recording
from tts_worker.errors import BundleError, SynthesisFailed
from tts_worker.voicepack.voice_file import Voice

if TYPE_CHECKING:
    from tts_worker.engine.cosyvoice.audio_frontend import PromptFrontend
    from tts_worker.engine.cosyvoice.bundle import Bundle

log = logging.getLogger(__name__)


class GuestVoices:
    """``bundle``, ``rl``: the model directory whose prompt models listen; opened for the first recording."""

    def __init__(self, bundle: Path, *, rl: bool = False) -> None:
        self._path = bundle
        self._rl = rl
        self._voices: dict[str, Voice] = {}
        self._listener: tuple[Bundle, PromptFrontend] | None = None

    def get(self, name: str) -> Voice | None:
        """On the engine's thread."""
        return self._voices.get(name)

    def learn(self, name: str, recording: Recording, transcript: str) -> None:
        """Raises InvalidRequest in plain words if no good voice can be made of the recording, TextTooLong, and
        SynthesisFailed if the model directory has no prompt models that work (the log says what is wrong)."""
        from tts_worker.engine.cosyvoice.enrol import enrol

        try:
            bundle, frontend = self._listen()
            self._voices[name] = enrol(bundle, frontend, recording, transcript)
        except BundleError as error:
            log.error("no voice can be learned: %s", error.message)
            raise SynthesisFailed("the model cannot learn voices: its prompt models do not work") from None

    def forget(self, name: str) -> None:
        self._voices.pop(name, None)

    def _listen(self) -> tuple[Bundle, PromptFrontend]:
        if self._listener is None:
            from tts_worker.engine.cosyvoice.audio_frontend import PromptFrontend
            from tts_worker.engine.cosyvoice.bundle import Bundle

            bundle = Bundle.open(self._path, rl=self._rl)
            self._listener = bundle, PromptFrontend(bundle)
        return self._listener
