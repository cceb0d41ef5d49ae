"""A model directory that speaks: text or a recording in, chunks of sound out, in every mode, one at a time.

Owns the way from a text to the pieces that are spoken one after the other, and the choice of device and back end.
It must not know arguments, files of sound or how a voice is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch

from tts_worker.audio.decode import Recording
from tts_worker.engine.cosyvoice.audio_frontend import PromptFrontend
from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.chunks import Interleave
from tts_worker.engine.cosyvoice.compat import Compat
from tts_worker.engine.cosyvoice.config import V3
from tts_worker.engine.cosyvoice.enrol import Mode, Speaker
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.request import Request
from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer
from tts_worker.engine.offline.onnx_graphs import GRAPHS_DIR, run_on_onnx
from tts_worker.engine.offline.pipeline import AudioChunk, OfflinePipeline
from tts_worker.errors import ConfigError, InvalidRequest, UnspeakableText
from tts_worker.text.reference_normaliser import normalise_and_split, wetext_rewriter

MAX_TEXT_CHARS = 20_000


class Backend(str, Enum):
    """What runs flow estimator and vocoder; the rest is PyTorch's."""

    TORCH = "torch"
    ONNX = "onnx"


@dataclass(frozen=True)
class Manner:
    """How to speak. ``mode`` None is what suits the voice; ``interleave`` feeds the text as if it were still being
    written (five tokens of text, fifteen of speech). ``normalise``: write out numbers and dates with wetext."""

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
    """``chunk`` of piece ``piece`` of ``pieces``; ``start_sample`` counts from the beginning of the text."""

    piece: int
    pieces: int
    start_sample: int
    chunk: AudioChunk


Listener = Callable[[int, int, int], None]
"""Told the piece, the number of pieces and the speech tokens of the piece so far."""


@dataclass(frozen=True)
class Reader:
    """Turns texts and recordings into what the networks are given. Needs no weights, so that what is wrong with a text
    or a voice shows before they are loaded."""

    bundle: Bundle
    tokenizer: TextTokenizer
    compat: Compat

    @classmethod
    def of(cls, bundle: Bundle, compat: Compat | None = None) -> Reader:
        """Raises BundleError, MissingExtra."""
        return cls(bundle, TextTokenizer.from_bundle(bundle), compat or Compat())

    def voice(self, root: Path, name: str) -> Speaker:
        """A stored voice. Raises UnknownVoice, BundleError."""
        return Speaker.load(self.bundle, self.tokenizer, root, name)

    def pieces(self, text: str, normalise: bool = False) -> list[str]:
        """What is spoken one after the other. Raises InvalidRequest for a text that is too long, UnspeakableText for
        one that holds nothing to speak, MissingExtra without wetext if it is to ``normalise``."""
        if len(text) > MAX_TEXT_CHARS:
            raise InvalidRequest(f"the text has {len(text)} characters; at most {MAX_TEXT_CHARS} are spoken offline")
        rewrite = wetext_rewriter() if normalise else None
        pieces = normalise_and_split(text, lambda piece: len(self.tokenizer.encode(piece)), rewrite=rewrite)
        pieces = [piece for piece in pieces if any(map(str.isalnum, piece))]
        if not pieces:
            raise UnspeakableText("there is nothing in this text that can be spoken")
        return pieces

    def requests(self, speaker: Speaker, text: str, manner: Manner) -> list[Request]:
        """One for each piece. Raises what ``pieces`` raises, and InvalidRequest for a mode that the voice cannot."""
        return [
            speaker.request(
                piece,
                mode=manner.mode,
                instruction=manner.instruction,
                allow_special=manner.allow_special,
                compat=self.compat,
            )
            for piece in self.pieces(text, manner.normalise)
        ]

    def conversion(self, speaker: Speaker, source: Recording) -> tuple[Request, list[int]]:
        """To say what ``source`` says in the speaker's voice: the request and the speech tokens. Raises InvalidRequest
        beyond 30 s, or for a voice without a prompt; BundleError."""
        request = speaker.request("", mode=Mode.CROSS_LINGUAL)
        frontend = PromptFrontend(self.bundle, reference=self.compat.torch_draws)
        return request, frontend.tokens(source).tolist()


class OfflineSpeaker:
    """Speaks with the weights of one model directory. Build it with ``load``."""

    def __init__(self, reader: Reader, networks: Networks) -> None:
        self._reader = reader
        self._pipeline = OfflinePipeline(networks, reader.compat)

    @classmethod
    def load(
        cls, reader: Reader, *, device: str = "cpu", backend: Backend = Backend.TORCH, graphs: Path | None = None
    ) -> OfflineSpeaker:
        """``graphs``: the folder of ``tts-worker export onnx``, for the ONNX back end. Raises BundleError, ConfigError
        for a device that is not there, MissingExtra."""
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"device: PyTorch finds no {device} on this machine")
        networks = Networks.load(reader.bundle, device=device, float32_phase=reader.compat.float32_phase)
        if backend is Backend.ONNX:
            run_on_onnx(networks, graphs or reader.bundle.path / GRAPHS_DIR, torch.get_num_threads())
        return cls(reader, networks)

    def speak(
        self, requests: Sequence[Request], manner: Manner, listener: Listener | None = None
    ) -> Iterator[SpokenChunk]:
        """``requests`` one after the other, as chunks in order. Under a compat that draws as the reference does, the
        seed goes to torch's default generator. Raises InvalidRequest, SynthesisFailed."""
        self._seed(manner.seed)
        start_sample = 0
        for i, request in enumerate(requests):
            tokens = 0

            def count(_token: int, i: int = i) -> None:
                nonlocal tokens
                tokens += 1
                if listener is not None:
                    listener(i, len(requests), tokens)

            chunks = self._pipeline.speak(
                request,
                text=self._interleaved(request) if manner.interleave else None,
                seed=manner.seed + i,
                stream=manner.stream,
                speed=manner.speed,
                on_token=count,
            )
            for chunk in chunks:
                yield SpokenChunk(i, len(requests), start_sample, chunk)
                start_sample += len(chunk.samples)

    def convert(self, request: Request, tokens: Sequence[int], manner: Manner) -> Iterator[SpokenChunk]:
        """Speech ``tokens`` in the voice of ``request``. Raises InvalidRequest."""
        self._seed(manner.seed)
        chunks = self._pipeline.sound(request, tokens, seed=manner.seed, stream=manner.stream, speed=manner.speed)
        for chunk in chunks:
            yield SpokenChunk(0, 1, chunk.start_sample, chunk)

    def _interleaved(self, request: Request) -> tuple[Interleave, Iterator[int]]:
        v3 = self._reader.bundle.config.family == V3
        prefix_end = self._reader.tokenizer.end_of_prompt_id if v3 else None
        return self._pipeline.interleave(request, prefix_end), iter(request.text)

    def _seed(self, seed: int) -> None:
        if self._reader.compat.torch_draws:
            torch.manual_seed(seed)
