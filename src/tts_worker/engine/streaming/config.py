"""What can be chosen about the streaming engine. Plain data with checks; knows no file and no tensor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tts_worker.errors import ConfigError


class TextMode(str, Enum):
    """How text that is still being written becomes speech tokens."""

    CLAUSE = "clause"  # clause by clause, each continuing the one before it
    INTERLEAVED = "interleaved"  # word by word: five tokens of text, fifteen of speech, in turn


@dataclass(frozen=True, slots=True)
class StreamingConfig:
    """Sizes count per engine. Raises ConfigError for sizes that cannot work.

    ``first_tokens``: speech tokens before the first boundary; the flow's prompt is trimmed to make it so. ``overlap``:
    on a CPU, the flow has a thread to itself, beside the language model and the vocoder (on CUDA, tokens and sound
    always have streams of their own). ``stride_chunks``: once a listener has some lead, so many chunks of the mask are
    computed and sent as one. ``context_tokens``: speech of earlier clauses that a clause continues. ``max_passage_s``:
    longest stretch of sound between two sentence ends; attention over it is what makes a late chunk dearer than an
    early one. ``lm_tokens``: longest sequence of the language model. ``pages``: memory for so many chunks (a second
    each) of all utterances and voices together. ``decode_batch``, ``render_batch``: how many utterances share a pass; a
    ``render_batch`` of 1 makes sound the same to the bit, alone or in a crowd. ``smooth_start``: where the next chunk
    would come too late, a first one waits for it instead of leaving a hole. ``retries``: how often a run of nonsense
    tokens is drawn again, as long as none of it was heard. ``graphs``: record CUDA graphs while warming up.
    ``checked``: fill memory with NaN, for tests.
    """

    max_utterances: int = 16
    text_mode: TextMode = TextMode.CLAUSE
    first_tokens: int = 8
    overlap: bool = False
    stride_chunks: int = 1
    context_tokens: int = 250
    max_passage_s: int = 30
    lm_tokens: int = 3072
    pages: int = 160
    cached_voices: int = 4
    decode_batch: int = 16
    render_batch: int = 1
    burst_tokens: int = 8
    smooth_start: bool = True
    retries: int = 2
    graphs: bool = False
    checked: bool = False

    def __post_init__(self) -> None:
        least = {
            "max_utterances": (self.max_utterances, 1),
            "first_tokens": (self.first_tokens, 1),
            "stride_chunks": (self.stride_chunks, 1),
            "context_tokens": (self.context_tokens, 0),
            "max_passage_s": (self.max_passage_s, 4),
            "lm_tokens": (self.lm_tokens, 128),
            "pages": (self.pages, 4),
            "cached_voices": (self.cached_voices, 1),
            "decode_batch": (self.decode_batch, 1),
            "render_batch": (self.render_batch, 1),
            "burst_tokens": (self.burst_tokens, 1),
            "retries": (self.retries, 0),
        }
        for name, (value, lowest) in least.items():
            if value < lowest:
                raise ConfigError(f"{name}: must be at least {lowest}")
