"""Speech as the reference makes it: ``python -m tools.reference``.

Splits and normalizes a text with the reference's rules and computes each segment by itself, with its draws, chunk sizes
and cross-fades.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tools.reference.algorithms import ReferenceFrontend, reference_request
from tools.reference.compat import Compat
from tools.reference.pipeline import AudioChunk, OfflinePipeline
from tools.reference.text import normalize_and_split, wetext_rewriter
from tools.reference.v1_pipeline import V1Pipeline
from tts_worker.audio.decode import Recording
from tts_worker.engine.cosyvoice.bundle.config import V1, V3
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.voices.speaker import Mode, Request, Speaker
from tts_worker.errors import ConfigError, InvalidRequest, UnspeakableText


@dataclass(frozen=True)
class ReferenceOptions:
    """Options of speech.

    Attributes:
        mode: None selects the default mode of the voice.
        instruction: Style instruction.
        seed: Seed of torch's default generator.
        speed: Speaking rate; not 1.0 only without ``stream``.
        stream: Compute chunk by chunk.
        interleave: Feed the text as if it arrived token by token (five text, fifteen speech tokens).
        allow_special: Interpret tags in the text.
        normalize: Spell out numbers and dates with wetext.
    """

    mode: Mode | None = None
    instruction: str = ""
    seed: int = 0
    speed: float = 1.0
    stream: bool = False
    interleave: bool = False
    allow_special: bool = False
    normalize: bool = False


class ReferenceSpeech:
    """One text or recording, prepared without the weights, so that errors are reported before they are loaded.

    Args:
        bundle: Model directory.
        speaker: The voice.
        options: Options of speech.
    """

    def __init__(self, bundle: Bundle, speaker: Speaker, options: ReferenceOptions) -> None:
        self._bundle = bundle
        self._speaker = speaker
        self._options = options
        self._compat = Compat.reference()
        self._requests: list[Request] = []
        self._tokens: list[int] | None = None  # of a recording to convert

    def read(self, text: str) -> None:
        """Prepare ``text``.

        Raises:
            InvalidRequest: The voice does not support the mode, or the model cannot take text in parts.
            UnspeakableText: The text contains nothing to speak.
            MissingExtra: ``normalize`` needs wetext.
        """
        options = self._options
        if options.interleave and self._bundle.config.family == V1:
            raise InvalidRequest("CosyVoice-300M takes whole texts only: leave --interleave out")
        tokenizer = self._speaker.tokenizer
        rewrite = wetext_rewriter() if options.normalize else None
        segments = normalize_and_split(text, lambda segment: len(tokenizer.encode(segment)), rewrite=rewrite)
        segments = [segment for segment in segments if any(map(str.isalnum, segment))]
        if not segments:
            raise UnspeakableText("there is nothing in this text that can be spoken")
        self._requests = [
            reference_request(
                self._speaker,
                segment,
                mode=options.mode,
                instruction=options.instruction,
                allow_special=options.allow_special,
                compat=self._compat,
            )
            for segment in segments
        ]

    def convert(self, source: Recording) -> None:
        """Prepare the conversion of ``source``.

        Raises:
            InvalidRequest: The recording is longer than 30 s, or the voice has no prompt.
            BundleError: A prompt model is missing or damaged.
        """
        self._requests = [self._speaker.request("", mode=Mode.CROSS_LINGUAL)]
        self._tokens = ReferenceFrontend(self._bundle).tokens(source).tolist()

    def load(self, device: str = "cpu") -> Networks:
        """Load the networks.

        Raises:
            BundleError: Weights are missing or damaged.
            ConfigError: The device is not available.
        """
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"device: PyTorch finds no {device} on this machine")
        return Networks.load(self._bundle, device=device, float32_phase=self._compat.float32_phase)

    def speak(self, networks: Networks) -> Iterator[tuple[int, AudioChunk]]:
        """Yield the number of each segment with its chunks.

        Raises:
            InvalidRequest: The options contradict each other.
            SynthesisFailed: The language model generated invalid ids.
        """
        options = self._options
        if self._bundle.config.family == V1:
            yield from self._speak_v1(networks)
            return
        pipeline = OfflinePipeline(networks, self._compat)
        prefix_end = self._speaker.tokenizer.end_of_prompt_id if self._bundle.config.family == V3 else None
        torch.manual_seed(options.seed)
        for i, request in enumerate(self._requests):
            text = (pipeline.interleave(request, prefix_end), iter(request.text)) if options.interleave else None
            if self._tokens is not None:
                chunks = pipeline.render(request, self._tokens, stream=options.stream, speed=options.speed)
            else:
                chunks = pipeline.speak(request, text=text, stream=options.stream, speed=options.speed)
            for chunk in chunks:
                yield i, chunk

    def _speak_v1(self, networks: Networks) -> Iterator[tuple[int, AudioChunk]]:
        """``speak`` with CosyVoice-300M."""
        options = self._options
        pipeline = V1Pipeline(networks)
        torch.manual_seed(options.seed)
        for i, request in enumerate(self._requests):
            if self._tokens is not None:
                chunks = pipeline.render(request, self._tokens, stream=options.stream, speed=options.speed)
            else:
                chunks = pipeline.speak(request, stream=options.stream, speed=options.speed)
            for chunk in chunks:
                yield i, chunk
