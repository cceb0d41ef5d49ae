"""Settings of a simulated engine: sizes, texts and faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tts_worker.engine.scheduler import Need
from tts_worker.types import SAMPLE_RATE_HZ, Segment, UtteranceKey

TOKEN_RATE_HZ = 25
CHUNK_TOKENS = 25
LOOKAHEAD_TOKENS = 3
SAMPLES_PER_TOKEN = SAMPLE_RATE_HZ // TOKEN_RATE_HZ

TokensOf = Callable[[UtteranceKey, int, Segment], int]
"""Returns the speech tokens of run number n of an utterance, which speaks a segment."""

PassFails = Callable[[Need, tuple[UtteranceKey, ...]], bool]
"""Whether the next pass over these utterances fails. Called once per pass."""


def tokens_by_length(key: UtteranceKey, run: int, segment: Segment) -> int:
    """Return two speech tokens per letter or digit: about twelve letters a second."""
    return 2 * sum(map(str.isalnum, segment.text))


def never_fails(operation: Need, members: tuple[UtteranceKey, ...]) -> bool:
    return False


@dataclass(frozen=True)
class SimulationConfig:
    """Settings of the simulated engine; those that the CosyVoice engine has, too, have the same names.

    Attributes:
        vocoder_context_tokens: Speech tokens whose frames the vocoder computes again with each chunk.
        held_samples: Audio at the end of a chunk that the vocoder gives with the next one.
        prompt_tokens: Speech tokens of the prompt of every voice.
        voices: Names of the voices.
        prepared: Whether the prompts are in memory at the start.
        first_chunk_on_device: With ``STREAMS``, submit the first chunk of a call as one piece of work.
    """

    max_utterances: int = 16
    first_tokens: int = 8
    stride_chunks: int = 1
    context_tokens: int = 250
    pages: int = 160
    decode_batch: int = 16
    render_batch: int = 1
    burst_tokens: int = 8
    smooth_start: bool = True
    vocoder_context_tokens: int = 16
    held_samples: int = 4 * SAMPLES_PER_TOKEN
    prompt_tokens: int = 125
    voices: tuple[str, ...] = ("simulated",)
    prepared: bool = True
    first_chunk_on_device: bool = True
