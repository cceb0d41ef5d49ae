"""Settings of the streaming engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tts_worker.errors import ConfigError

OLDEST_TORCH = (2, 9)  # the first one with RMS norm as a single CUDA kernel
LM_TOKENS = 3072  # default length of the language model's context
GRAPHS_DIR = "onnx"  # of exported graphs, in a model directory


class TextMode(str, Enum):
    """How text that is still being written becomes speech tokens."""

    CLAUSE = "clause"  # clause by clause; each run continues the previous clauses
    INTERLEAVED = "interleaved"  # word by word: five text tokens alternate with fifteen speech tokens


class CompileMode(str, Enum):
    """When to compile computations with ``torch.compile``."""

    AUTO = "auto"  # on CUDA with Triton, unless the fused kernels are used
    ON = "on"
    OFF = "off"


LibraryChoice = Callable[[Any, bool], tuple[Callable[..., Any] | None, tuple[str, ...]]]
"""From a flow, and whether its passes are captured: what builds the library of its attention, and why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Settings that are the same on every device: ``LoadOptions`` and ``StreamingConfig`` have them.

    Attributes:
        first_tokens: Speech tokens before the first chunk boundary. The flow prompt is trimmed to match.
        context_tokens: Speech tokens of earlier clauses that a clause continues; fewer if the bundle says so.
        max_segment_s: Longest audio segment (audio between two sentence ends). Attention over the segment makes a late
            chunk more expensive than an early one.
        cached_voices: Voices with a prepared prompt that stay in memory while unused.
        burst_tokens: Decode steps of one pass.
        smooth_start: Defer the first chunk if the next one would come too late to prevent an underrun.
        kernels: On CUDA, use the fused kernels that pass their check. Applies to all engines of the process.
    """

    first_tokens: int = 8
    context_tokens: int = 250
    max_segment_s: int = 30
    cached_voices: int = 4
    burst_tokens: int = 8
    smooth_start: bool = True
    kernels: bool = True


@dataclass(frozen=True, slots=True)
class StreamingConfig(EngineOptions):
    """Settings of one engine. Sizes that cannot work raise ``ConfigError``.

    Attributes:
        max_utterances: Slots of the language model.
        text_mode: How text that is still being written becomes speech tokens.
        acceleration: On CUDA, take the accelerated paths that pass their check on the device. Without, the options
            ``kernels``, ``graphs``, ``compile``, ``gathers`` and ``library`` have no effect.
        overlap: On a CPU, run the flow on its own thread, beside the language model and the vocoder. On CUDA, tokens
            and audio always have separate streams.
        stride_chunks: Chunks of the mask computed and sent as one, once the playout lead allows it.
        lm_tokens: Longest sequence of the language model.
        pages: Flow memory in chunks of one second, shared by all utterances and voices.
        decode_batch: Most utterances in one language model pass.
        render_batch: Most utterances in one flow or vocoder pass. With 1, the audio of an utterance does not depend on
            other utterances, to the bit.
        first_chunk_on_device: On CUDA, submit the first chunk of a call as one piece of work, from the prefill to the
            audio; the host reads its tokens afterwards.
        retries: How often a run of invalid tokens is drawn again while none of its audio may have been sent.
        graphs: Capture CUDA graphs during warm-up.
        compile: Compile computations before they are captured (the feature ``acceleration``).
        gathers: Compute attention on CUDA by PyTorch over copies of keys and values, in all engines of the process; for
            measurements.
        library: Chooses what computes the flow's attention in place of the kernel; for measurements.
        audio_graphs: Capture them for flow and vocoder, too. Other back ends than PyTorch cannot be captured.
        checked: Fill memory with NaN to detect reads of unwritten memory, for tests.

    The other settings are those of ``EngineOptions``.
    """

    max_utterances: int = 16
    text_mode: TextMode = TextMode.CLAUSE
    acceleration: bool = True
    overlap: bool = False
    stride_chunks: int = 1
    lm_tokens: int = LM_TOKENS
    pages: int = 160
    decode_batch: int = 16
    render_batch: int = 1
    first_chunk_on_device: bool = True
    retries: int = 2
    graphs: bool = False
    compile: CompileMode = CompileMode.AUTO
    gathers: bool = False
    library: LibraryChoice | None = None
    audio_graphs: bool = True
    checked: bool = False

    def __post_init__(self) -> None:
        limits = {
            "max_utterances": (self.max_utterances, 1),
            "first_tokens": (self.first_tokens, 1),
            "stride_chunks": (self.stride_chunks, 1),
            "context_tokens": (self.context_tokens, 0),
            "max_segment_s": (self.max_segment_s, 4),
            "lm_tokens": (self.lm_tokens, 128),
            "pages": (self.pages, 4),
            "cached_voices": (self.cached_voices, 1),
            "decode_batch": (self.decode_batch, 1),
            "render_batch": (self.render_batch, 1),
            "burst_tokens": (self.burst_tokens, 1),
            "retries": (self.retries, 0),
        }
        for name, (value, minimum) in limits.items():
            if value < minimum:
                raise ConfigError(f"{name}: must be at least {minimum}")
