"""Voices enrolled from recordings at run time.

The enrollment thread (``tts_worker.voices.enrollment``) writes, the engine thread reads. An entry never changes once it
is stored, so no lock is needed. Entries live in memory only and outlive an engine that is rebuilt after a fault. An
engine in a separate process has a copy, to which changes are sent (``tts_worker.engine.base.SharedState``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_worker.audio.decode import Recording
from tts_worker.audio.prompt import PromptFigures
from tts_worker.audio.window import Window
from tts_worker.errors import BundleError, SynthesisFailed
from tts_worker.voices.files import Voice

if TYPE_CHECKING:
    from tts_worker.engine.cosyvoice.bundle.directory import Bundle
    from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend

log = logging.getLogger(__name__)

_LOADING = threading.Lock()  # voices are enrolled on one thread and converted on another


@dataclass(frozen=True)
class VoiceChange:
    """A voice was stored, or forgotten if ``voice`` is None."""

    name: str
    voice: Voice | None


class EnrolledVoices:
    """Enrolled voices of one engine, by name.

    Args:
        bundle: Model directory. Its prompt models are loaded for the first recording.
        rl: Whether to use the reinforcement-learned weights.
        device: Where to run the prompt models, as in ``PromptFrontend``.
    """

    def __init__(self, bundle: Path, *, rl: bool = False, device: str = "auto") -> None:
        self._path = bundle
        self._device = device
        self._rl = rl
        self._voices: dict[str, Voice] = {}
        self._prompt_models: tuple[Bundle, PromptFrontend] | None = None
        self._on_change: Callable[[object], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy only reads voices; it loads no prompt models. The dict is copied in one step: another thread may write.
        return {**self.__dict__, "_voices": dict(self._voices), "_prompt_models": None, "_on_change": None}

    def on_change(self, callback: Callable[[object], None] | None) -> None:
        self._on_change = callback

    def apply(self, change: object) -> None:
        assert isinstance(change, VoiceChange)
        if change.voice is None:
            self._voices.pop(change.name, None)
        else:
            self._voices[change.name] = change.voice
        if self._on_change is not None:
            self._on_change(change)

    def get(self, name: str) -> Voice | None:
        """Return a voice. Called on the engine thread."""
        return self._voices.get(name)

    def store(self, name: str, voice: Voice) -> None:
        """Store a voice. It takes precedence over a voice of the same name in the model directory."""
        self.apply(VoiceChange(name, voice))

    def enroll(self, name: str, recording: Recording, transcript: str) -> None:
        """Compute and store the voice of ``recording``. Called on the enrollment thread.

        Raises:
            InvalidRequest: The recording is unsuitable; the message says why.
            TextTooLong: The transcript is too long.
            SynthesisFailed: The prompt models are missing or damaged; the log says which.
        """
        self.store(name, self.compute(recording, transcript)[0])

    def compute(self, recording: Recording, transcript: str) -> tuple[Voice, PromptFigures]:
        """Compute the voice of ``recording`` without storing it. Called on the enrollment thread.

        Raises as ``enroll``.
        """
        from tts_worker.engine.cosyvoice.voices.enroll import enroll_measured

        try:
            bundle, frontend = self._load_prompt_models()
            return enroll_measured(bundle, frontend, recording, transcript)
        except BundleError as error:
            log.error("voice enrollment is unavailable: %s", error.message)
            raise SynthesisFailed("the model cannot enroll voices: its prompt models do not work") from None

    def speech_tokens(self, window: Window) -> tuple[int, ...]:
        """Return the speech tokens of the new audio of a window. Called on the conversion thread.

        Raises:
            InvalidRequest: The audio is unsuitable; the message says why.
            SynthesisFailed: The speech tokenizer is missing or damaged; the log says which.
        """
        try:
            _, frontend = self._load_prompt_models()
            return frontend.window_tokens(window)
        except BundleError as error:
            log.error("voice conversion is unavailable: %s", error.message)
            raise SynthesisFailed("the model cannot convert voices: its speech tokenizer does not work") from None

    def forget(self, name: str) -> None:
        """Remove a voice. Unknown names are ignored."""
        self.apply(VoiceChange(name, None))

    def _load_prompt_models(self) -> tuple[Bundle, PromptFrontend]:
        with _LOADING:
            return self._prompt_models_of_bundle()

    def _prompt_models_of_bundle(self) -> tuple[Bundle, PromptFrontend]:
        if self._prompt_models is None:
            from tts_worker.engine.cosyvoice.bundle.directory import Bundle
            from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend

            bundle = Bundle.open(self._path, rl=self._rl)
            self._prompt_models = (bundle, PromptFrontend(bundle, device=self._device))
        return self._prompt_models
