"""Routes an utterance in a language that the voice of its session lacks to a voice that speaks it.

Only where the client names neither a voice nor a language. The first text of the utterance that has letters decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tts_worker.text.language import is_written_in_latin, language_of, primary_tag
from tts_worker.types import Alignment, SessionOptions, SynthesisParams
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.description import VoiceDescription
from tts_worker.voices.routing import INSTRUCT, VoiceRequest, matching_voices, supports_language

_DETECTED_CHARS = 400


class LanguageRouter:
    """Chooses the voices of a session's utterances by the language of their text.

    Languages are told apart by their script. Text in Latin letters stays with every voice that speaks a language
    written so: short texts do not tell English from German reliably.

    Args:
        voices: The voice catalog.
        options: Options of the session; replace them when the session is configured.
        engine: The engine of the session.
        is_ready: Whether the engine of this name can speak now.
        on_routed: Called with the name of another engine to which an utterance is routed.

    Attributes:
        engines: Other engines to which utterances were routed.
    """

    def __init__(
        self,
        voices: VoiceCatalog,
        options: SessionOptions,
        engine: str,
        is_ready: Callable[[str], bool],
        on_routed: Callable[[str], None],
    ) -> None:
        self.options = options
        self.engines: set[str] = set()
        self._voices = voices
        self._engine = engine
        self._is_ready = is_ready
        self._on_routed = on_routed

    def route(self, params: SynthesisParams, text: str) -> tuple[SynthesisParams, Alignment] | None:
        """Return the parameters of an utterance that begins with ``text``, and the alignment of its engine.

        None if ``text`` is short and has no letters, of which the next ones decide: language models often begin with an
        empty text or a quote.

        Args:
            params: Those of the session.
            text: The text so far.
        """
        begin = text[:_DETECTED_CHARS]
        if len(text) < _DETECTED_CHARS and self._may_route(params) and not any(map(str.isalpha, begin)):
            return None
        voice = self._choose(params, begin)
        if voice is None:
            return params, self._voices.get_in_use(params.voice).info.alignment
        if voice.engine != self._engine:
            self.engines.add(voice.engine)
            self._on_routed(voice.engine)
        return replace(params, voice=voice.name), voice.info.alignment

    def _may_route(self, params: SynthesisParams) -> bool:
        """Whether some text would be spoken by another voice than that of ``params``."""
        if self.options.voice is not None or self.options.language is not None:
            return False
        own = self._voices.get_in_use(params.voice).languages
        return bool(own) and "mul" not in own and not set(map(primary_tag, own)).issuperset(self._languages())

    def _choose(self, params: SynthesisParams, text: str) -> VoiceDescription | None:
        """Return the voice for an utterance that begins with ``text``; None keeps that of ``params``."""
        if not self._may_route(params):
            return None
        options = self.options
        own = self._voices.get_in_use(params.voice)
        language = language_of(text, self._languages())
        if language is None or supports_language(own, language):
            return None
        if is_written_in_latin(language) and any(map(is_written_in_latin, own.languages)):
            return None
        needs = (*options.needs, INSTRUCT) if params.instruct else options.needs
        for voice in matching_voices(self._voices, VoiceRequest(None, language, options.model, needs)):
            slowest, fastest = voice.info.speed_range
            if slowest <= params.speed <= fastest and self._is_ready(voice.engine):
                return voice
        return None

    def _languages(self) -> list[str]:
        """Primary tags of the languages of all voices; one of any language does not tell which are expected."""
        return [primary_tag(tag) for voice in self._voices for tag in voice.languages if tag != "mul"]
