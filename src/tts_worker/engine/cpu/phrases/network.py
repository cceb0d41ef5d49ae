"""What a CPU voice brings: a network that turns a phrase into audio, block by block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.types import SAMPLE_RATE_HZ, Expression, Segment, SynthesisParams, WordTiming

P = TypeVar("P")
"""What the network predicts for a phrase."""

PRE_ROLL_SAMPLES = SAMPLE_RATE_HZ // 50
POST_ROLL_SAMPLES = SAMPLE_RATE_HZ // 25
"""Near-silence that a phrase retains around its speech: 20 ms before it and 40 ms after it."""

FADE_SAMPLES = SAMPLE_RATE_HZ // 200


@dataclass(frozen=True, slots=True)
class AudioBlock:
    """Part of a phrase.

    Attributes:
        samples: ``[N] float32``.
        words: Words that begin in this block or later ones, in samples from the start of the phrase; each comes once.
    """

    samples: Floats
    words: tuple[WordTiming, ...]


class PhraseSynthesis(ABC, Generic[P]):
    """Audio of one phrase, block by block. It depends only on the phrase, its parameters and the noise generator.

    A network whose predictions are large overrides the members that free them.

    Attributes:
        phrase: The phrase.
        total_samples: Length of the audio; 0 if it is silent.
    """

    phrase: Phrase
    total_samples: int

    @property
    def first_unbegun_word(self) -> int:
        """Number of the first word whose expression may still change, with another prediction by ``resume``.

        The audio before it stays as it is. The number of words if none may change.
        """
        return len(self.phrase.words)

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether all audio is rendered."""

    @abstractmethod
    def next_block(self) -> AudioBlock:
        """Render the next block.

        Raises:
            SynthesisFailed: The network's output contains NaN or infinity.
        """

    @property
    def spectra_frames(self) -> int:
        """Length of the predicted spectra in memory."""
        return 0

    @property
    def suspended(self) -> bool:
        """Whether the prediction was freed."""
        return False

    def suspend(self) -> None:
        """Free the prediction; ``resume`` brings it back before the next block."""
        return

    def resume(self, prediction: P) -> None:
        """Continue after ``suspend`` with a prediction for ``phrase``: as before, or with the new end of its audio."""
        return


class PhraseNetwork(ABC, Generic[P]):
    """A network that turns a phrase into audio, with the text processing that it needs."""

    def perform(self, expression: Expression) -> Expression:
        """Return ``expression`` with the rate, volume and pitch of its style, if the voice performs styles."""
        return expression

    @abstractmethod
    def phrases(self, segment: Segment, params: SynthesisParams) -> Iterator[Phrase | None]:
        """Yield the phrases of a segment; each item, None included, takes a bounded amount of work."""

    @abstractmethod
    def predict(self, phrase: Phrase, params: SynthesisParams) -> P:
        """Run the network. It is called on another thread."""

    @abstractmethod
    def synthesis(
        self, phrase: Phrase, prediction: P, params: SynthesisParams, noise: np.random.Generator
    ) -> PhraseSynthesis[P]:
        """Return the audio of a phrase."""
