"""The voices of the CPU engine: hibari-tts behind the ``Engine`` protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tts_worker.engine.cpu.hibari.expression import express, louder
from tts_worker.engine.cpu.hibari.model import MANDARIN, VOICE, HibariModel, Spectra
from tts_worker.engine.cpu.hibari.moods import MOODS, with_mood
from tts_worker.engine.cpu.hibari.speech import HibariSynthesis
from tts_worker.engine.cpu.phrases.engine import PhraseEngine
from tts_worker.engine.cpu.phrases.expression import SPEED_RANGE, slowest_speed, speeds_of
from tts_worker.engine.cpu.phrases.mandarin import contains_han, divided
from tts_worker.engine.cpu.phrases.network import PhraseNetwork
from tts_worker.engine.cpu.phrases.text import MAX_PHONEMES, Phrase
from tts_worker.types import Alignment, EngineInfo, Expression, Segment, SynthesisParams

LANGUAGE = "en"
"""Of all voices; some speak Mandarin, too."""


class _HibariNetwork(PhraseNetwork[Spectra]):
    """Predicts spectra: 12 KB a frame, up to 1 000 frames for a phrase, mostly less than 300 for a clause."""

    def __init__(self, model: HibariModel) -> None:
        self._model = model

    def phrases(self, segment: Segment, params: SynthesisParams) -> Iterator[Phrase | None]:
        # Slow speech is longer: fewer phonemes take the network the same time.
        limit = round(MAX_PHONEMES * min(1.0, slowest_speed(segment, params.speed)))
        may_have_han = not segment.text.isascii()  # mostly ruled out without a search
        han_voice = self._model.mandarin_voice(params.voice) if may_have_han and contains_han(segment) else None
        if han_voice is None or han_voice == params.voice:
            yield from self._model.phonemizer_of(params.voice).phonemize(segment, limit)
            return
        for is_mandarin, part in divided(segment):
            voice = han_voice if is_mandarin else params.voice
            for phrase in self._model.phonemizer_of(voice).phonemize(part, limit):
                yield phrase and replace(phrase, voice=voice)

    def perform(self, expression: Expression) -> Expression:
        return with_mood(expression)

    def predict(self, phrase: Phrase, params: SynthesisParams) -> Spectra:
        voice = phrase.voice or params.voice
        spectra = self._model.predict(phrase.ids, speeds_of(phrase, params.speed), voice)
        if phrase.expressions:
            spectra = express(spectra, phrase)
        if voice != params.voice:
            spectra = louder(spectra, self._model.level_change_db(voice, params.voice))
        return spectra

    def synthesis(
        self, phrase: Phrase, prediction: Spectra, params: SynthesisParams, noise: np.random.Generator
    ) -> HibariSynthesis:
        return HibariSynthesis(phrase, prediction, params.speed, noise)


class HibariEngine(PhraseEngine[Spectra]):
    """Synthesizes speech on the CPU, English and with some voices Mandarin.

    ``warm_up`` takes about a second (it loads the dictionaries). ``SynthesisParams.instruct`` has no effect: a voice
    has one style. Utterances of all voices share the two threads, and cost the same. Mandarin in an utterance of a
    voice that does not speak it is said by one that does, if there is one.

    Args:
        model: The networks of the voices.
        max_utterances: Utterances served at a time.
    """

    def __init__(self, model: HibariModel, *, max_utterances: int = 64) -> None:
        super().__init__(
            EngineInfo(
                name="hibari",
                voices=model.voices,
                languages=(LANGUAGE, *([MANDARIN] if any(map(model.speaks_mandarin, model.voices)) else [])),
                alignment=Alignment.MEASURED,
                max_utterances=max_utterances,
                speed_range=SPEED_RANGE,
                expressions=("rate", "volume", "pitch", "style"),
                moods=tuple(MOODS),
                mixable=model.mixable,
                extra=(("model", "hibari-tts 0.2.1"),),
            ),
            _HibariNetwork(model),
        )
        self._model = model

    def warm_up(self) -> None:
        """Synthesize once through every path: both speed limits, short and long text, an unknown word, given phonemes.

        Further voices say a word each.

        Raises:
            EngineFault: Synthesis fails or its output is silent.
        """
        long_text = "The network allocates for its longest phrase now, " * 3 + "and Zquorblat is in no dictionary."
        self.warm_up_with(
            VOICE,
            [
                (1.0, Segment.whole("Hello", "həlˈO")),
                (SPEED_RANGE[0], Segment.whole("Yes.")),
                (SPEED_RANGE[1], Segment.whole("Yes.")),
                (1.0, Segment.whole(long_text)),
            ],
        )
        for voice in self._model.voices[1:]:
            self.warm_up_with(voice, [(1.0, Segment.whole("你好" if self._model.speaks_mandarin(voice) else "Hello"))])
