"""Offline speech synthesis and voice conversion with one model directory.

Splits a text into segments, builds a request for each, and selects the device and back end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch

from tts_worker.audio.decode import Recording
from tts_worker.engine.cosyvoice.audio_frontend import PromptFrontend
from tts_worker.engine.cosyvoice.backends.onnx_graphs import GRAPHS_DIR, run_on_onnx
from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.chunks import Interleave
from tts_worker.engine.cosyvoice.compat import Compat
from tts_worker.engine.cosyvoice.config import V3
from tts_worker.engine.cosyvoice.enrol import Mode, Speaker
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.offline import AudioChunk, OfflinePipeline
from tts_worker.engine.cosyvoice.request import Request
from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer
from tts_worker.errors import ConfigError, InvalidRequest, UnspeakableText
from tts_worker.text.reference_normalizer import normalize_and_split, wetext_rewriter

MAX_TEXT_CHARS = 20_000


class Backend(str, Enum):
    """Back end of the flow estimator and the vocoder; everything else runs on PyTorch."""

    TORCH = "torch"
    ONNX = "onnx"


@dataclass(frozen=True)
class OfflineOptions:
    """Options of offline synthesis.

    Attributes:
        mode: None selects the default mode of the voice.
        interleave: Feed the text as if it arrived token by token (five text, fifteen speech tokens).
        normalise: Spell out numbers and dates with wetext.
    """

    mode: Mode | None = None
    instruction: str = ""
    seed: int = 0
    speed: float = 1.0
    stream: bool = False
    interleave: bool = False
    allow_special: bool = False
    normalise: bool = False


@dataclass(frozen=True)
class SpokenChunk:
    """``chunk`` of segment number ``segment`` of ``segments``; ``start_sample`` counts from the start of the text."""

    segment: int
    segments: int
    start_sample: int
    chunk: AudioChunk


TokenProgress = Callable[[int, int, int], None]
"""Called with the segment, the number of segments and the speech tokens of the segment so far."""


@dataclass(frozen=True)
class RequestBuilder:
    """Builds requests from texts and recordings.

    Needs no weights, so that errors in a text or a voice are reported before the weights are loaded.
    """

    bundle: Bundle
    tokenizer: TextTokenizer
    compat: Compat

    @classmethod
    def from_bundle(cls, bundle: Bundle, compat: Compat | None = None) -> RequestBuilder:
        """Load the tokenizer of ``bundle``. Raises BundleError, MissingExtra."""
        return cls(bundle, TextTokenizer.from_bundle(bundle), compat or Compat())

    def voice(self, root: Path, name: str) -> Speaker:
        """Load a stored voice. Raises UnknownVoice, BundleError."""
        return Speaker.load(self.bundle, self.tokenizer, root, name)

    def segments(self, text: str, normalise: bool = False) -> list[str]:
        """Split a text into segments that are synthesized one after the other.

        Raises:
            InvalidRequest: The text is too long.
            UnspeakableText: The text contains nothing to speak.
            MissingExtra: ``normalise`` needs wetext.
        """
        if len(text) > MAX_TEXT_CHARS:
            raise InvalidRequest(f"the text has {len(text)} characters; at most {MAX_TEXT_CHARS} are spoken offline")
        rewrite = wetext_rewriter() if normalise else None
        segments = normalize_and_split(text, lambda segment: len(self.tokenizer.encode(segment)), rewrite=rewrite)
        segments = [segment for segment in segments if any(map(str.isalnum, segment))]
        if not segments:
            raise UnspeakableText("there is nothing in this text that can be spoken")
        return segments

    def requests(self, speaker: Speaker, text: str, options: OfflineOptions) -> list[Request]:
        """Build one request per segment.

        Raises what ``segments`` raises, and InvalidRequest if the voice does not support the mode.
        """
        return [
            speaker.request(
                segment,
                mode=options.mode,
                instruction=options.instruction,
                allow_special=options.allow_special,
                compat=self.compat,
            )
            for segment in self.segments(text, options.normalise)
        ]

    def conversion(self, speaker: Speaker, source: Recording) -> tuple[Request, list[int]]:
        """Build the request that converts ``source`` to the speaker's voice, and the speech tokens of ``source``.

        Raises:
            InvalidRequest: The recording is longer than 30 s, or the voice has no prompt.
            BundleError: A prompt model is missing or damaged.
        """
        request = speaker.request("", mode=Mode.CROSS_LINGUAL)
        frontend = PromptFrontend(self.bundle, reference=self.compat.torch_draws)
        return request, frontend.tokens(source).tolist()


class OfflineSpeaker:
    """Synthesizes with the weights of one model directory. Create it with ``load``."""

    def __init__(self, builder: RequestBuilder, networks: Networks) -> None:
        self._builder = builder
        self._pipeline = OfflinePipeline(networks, builder.compat)

    @classmethod
    def load(
        cls,
        builder: RequestBuilder,
        *,
        device: str = "cpu",
        backend: Backend = Backend.TORCH,
        graphs: Path | None = None,
    ) -> OfflineSpeaker:
        """Load the networks.

        Args:
            builder: Selects the model directory.
            device: PyTorch device.
            backend: Back end of the flow estimator and the vocoder.
            graphs: Directory written by ``tts-worker export onnx``, for the ONNX back end.

        Raises:
            BundleError: Weights or graphs are missing or damaged.
            ConfigError: The device is not available.
            MissingExtra: ONNX Runtime is not installed.
        """
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"device: PyTorch finds no {device} on this machine")
        networks = Networks.load(builder.bundle, device=device, float32_phase=builder.compat.float32_phase)
        if backend is Backend.ONNX:
            run_on_onnx(networks, graphs or builder.bundle.path / GRAPHS_DIR, torch.get_num_threads())
        return cls(builder, networks)

    def speak(
        self, requests: Sequence[Request], options: OfflineOptions, progress: TokenProgress | None = None
    ) -> Iterator[SpokenChunk]:
        """Synthesize ``requests`` one after the other; yields chunks in order.

        If the compat switches sample like the reference, ``seed`` seeds torch's default generator.

        Raises:
            InvalidRequest: The options contradict each other.
            SynthesisFailed: The language model generated invalid ids.
        """
        self._seed(options.seed)
        start_sample = 0
        for i, request in enumerate(requests):
            tokens = 0

            def count(_token: int, i: int = i) -> None:
                nonlocal tokens
                tokens += 1
                if progress is not None:
                    progress(i, len(requests), tokens)

            chunks = self._pipeline.speak(
                request,
                text=self._interleaved(request) if options.interleave else None,
                seed=options.seed + i,
                stream=options.stream,
                speed=options.speed,
                on_token=count,
            )
            for chunk in chunks:
                yield SpokenChunk(i, len(requests), start_sample, chunk)
                start_sample += len(chunk.samples)

    def convert(self, request: Request, tokens: Sequence[int], options: OfflineOptions) -> Iterator[SpokenChunk]:
        """Render speech ``tokens`` in the voice of ``request``. Raises InvalidRequest."""
        self._seed(options.seed)
        chunks = self._pipeline.render(request, tokens, seed=options.seed, stream=options.stream, speed=options.speed)
        for chunk in chunks:
            yield SpokenChunk(0, 1, chunk.start_sample, chunk)

    def _interleaved(self, request: Request) -> tuple[Interleave, Iterator[int]]:
        v3 = self._builder.bundle.config.family == V3
        prefix_end = self._builder.tokenizer.end_of_prompt_id if v3 else None
        return self._pipeline.interleave(request, prefix_end), iter(request.text)

    def _seed(self, seed: int) -> None:
        if self._builder.compat.torch_draws:
            torch.manual_seed(seed)
