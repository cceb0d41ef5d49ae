"""Kokoro-82M behind the ``Engine`` protocol: English and Mandarin on the CPU, for one or two calls at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats, fade_in, fade_out
from tts_worker.engine.cpu.kokoro.model import LANGUAGES, VOICES, KokoroModel, KokoroSpeech
from tts_worker.engine.cpu.phrases.engine import PhraseEngine
from tts_worker.engine.cpu.phrases.expression import SPEED_RANGE, per_id, slowest_speed, speeds_of
from tts_worker.engine.cpu.phrases.network import (
    FADE_SAMPLES,
    POST_ROLL_SAMPLES,
    PRE_ROLL_SAMPLES,
    AudioBlock,
    PhraseNetwork,
    PhraseSynthesis,
)
from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES, word_times
from tts_worker.errors import SynthesisFailed
from tts_worker.types import Alignment, EngineInfo, Segment, SynthesisParams, WordTiming

_MAX_PHONEMES = 90
"""Limit of one phrase at normal speed: 6 to 7 s of speech."""

_QUIET_DBFS = -50.0
_BLOCK_SAMPLES = 12_000


class KokoroSynthesis(PhraseSynthesis[KokoroSpeech]):
    """The samples of one phrase without the silence around them."""

    def __init__(self, phrase: Phrase, speech: KokoroSpeech) -> None:
        self.phrase = phrase
        power = _frame_power(speech.samples)
        audible = np.flatnonzero(power > 1)
        start = end = 0
        if len(audible):
            start = max(0, int(audible[0]) * FRAME_SAMPLES - PRE_ROLL_SAMPLES)
            end = min(len(speech.samples), (int(audible[-1]) + 1) * FRAME_SAMPLES + POST_ROLL_SAMPLES)
        self.total_samples = end - start
        samples = speech.samples
        if phrase.expressions:
            levels_db = per_id(phrase, (each.volume_db for each in phrase.expressions))
            volume_db = np.interp(np.arange(len(samples)), speech.ends, levels_db)
            samples = samples * np.power(10, volume_db / 20, dtype=np.float32)
        self._samples = fade_out(fade_in(samples[start:end], FADE_SAMPLES), FADE_SAMPLES)
        self._words = word_times(phrase, speech.ends, power, start, end)
        self._rendered_samples = 0

    @property
    def finished(self) -> bool:
        return self._rendered_samples >= self.total_samples

    def next_block(self) -> AudioBlock:
        samples = self._samples[self._rendered_samples : self._rendered_samples + _BLOCK_SAMPLES]
        if not np.all(np.isfinite(samples)):
            raise SynthesisFailed("the voice model produced NaN or infinite samples; try again or change the text")
        words: tuple[WordTiming, ...] = () if self._rendered_samples else self._words
        self._rendered_samples += len(samples)
        return AudioBlock(samples, words)


def _frame_power(samples: Floats) -> NDArray[np.float32]:
    """Return the power of each 12.5 ms ``[F]``, in units of the threshold: a frame above 1 is audible."""
    frames = samples[: len(samples) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    return np.asarray(np.mean(np.square(frames), axis=1) / 10.0 ** (_QUIET_DBFS / 10), np.float32)


class _KokoroNetwork(PhraseNetwork[KokoroSpeech]):
    def __init__(self, model: KokoroModel) -> None:
        self._model = model

    def phrases(self, segment: Segment, params: SynthesisParams) -> Iterator[Phrase | None]:
        # Slow speech is longer: fewer phonemes take the network the same time.
        limit = round(_MAX_PHONEMES * min(1.0, slowest_speed(segment, params.speed)))
        return self._model.phonemizer.phonemize(segment, limit)

    def predict(self, phrase: Phrase, params: SynthesisParams) -> KokoroSpeech:
        return self._model.predict(phrase.ids, params.voice, speeds_of(phrase, params.speed))

    def synthesis(
        self, phrase: Phrase, prediction: KokoroSpeech, params: SynthesisParams, noise: np.random.Generator
    ) -> KokoroSynthesis:
        return KokoroSynthesis(phrase, prediction)


class KokoroEngine(PhraseEngine[KokoroSpeech]):
    """Synthesizes English and Mandarin on the CPU; mixed text as well.

    Loading and ``warm_up`` take about five seconds. The network renders whole phrases, so the first audio of a clause
    comes after half its duration or later. ``SynthesisParams.instruct`` has no effect; the seed neither: the phase of
    the network's noise is drawn inside of it.

    Args:
        model: The network.
        max_utterances: Utterances served at a time.
    """

    MAX_RUN_S = 20.0
    SHARES_THREAD = False
    MAX_RUNS = 1  # a new call must not wait for two of them

    def __init__(self, model: KokoroModel, *, max_utterances: int = 4) -> None:
        super().__init__(
            EngineInfo(
                name="kokoro",
                voices=tuple(VOICES),
                languages=LANGUAGES,
                alignment=Alignment.MEASURED,
                max_utterances=max_utterances,
                speed_range=SPEED_RANGE,
                expressions=("rate", "volume"),
                extra=(("model", "Kokoro-82M v1.0 int8"),),
            ),
            _KokoroNetwork(model),
        )

    def warm_up(self) -> None:
        """Load the dictionaries and synthesize a sentence in each language, with a word that is in no dictionary.

        Raises:
            EngineFault: Synthesis fails or its output is silent.
        """
        texts = ("Yes, 5 of 10 are Zquorblats.", "你好，十点。")
        self.warm_up_with(next(iter(VOICES)), [(1.0, Segment.whole(text)) for text in texts])
