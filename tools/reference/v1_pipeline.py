"""Speech of CosyVoice-300M as the reference makes it: text at once, audio at once or in overlapping parts.

Reproduces the reference's numbers from a seed of torch's default CPU generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.reference.algorithms import FadeState, V1Draws, reference_fade
from tools.reference.compat import Compat
from tools.reference.pipeline import AudioChunk, MelPart, TokenDecoder, check_speed, chunks_of, render_chunks
from tts_worker.engine.cosyvoice.audio.chunks import Chunk, next_chunk
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item
from tts_worker.engine.cosyvoice.tokens.runs import MAX_RATIO, start_items
from tts_worker.engine.cosyvoice.v1.flow import V1Flow, fade_mel
from tts_worker.engine.cosyvoice.v1.transformer_lm import TransformerLm
from tts_worker.engine.cosyvoice.voices.speaker import Request


class V1Decoder(TokenDecoder):
    """Decodes one utterance with the language model of CosyVoice-300M."""

    def __init__(self, networks: Networks, request: Request) -> None:
        capacity = len(request.prompt_text) + len(request.lm_prompt) + (1 + MAX_RATIO) * len(request.text) + 3
        super().__init__(networks, Compat.reference(), 0, capacity)
        lm = networks.lm
        assert isinstance(lm, TransformerLm)
        lm.prepare(capacity + 1)
        self._v1 = lm
        speaker = lm.speaker(request.embedding.reshape(1, -1).to(self._slot.device))
        self._speakers = speaker if request.with_speaker else torch.zeros_like(speaker)

    def start(self, request: Request) -> list[Item]:
        return start_items((*request.prompt_text, *request.text), with_speaker=request.with_speaker)

    def feed(self, items: Sequence[Item]) -> Tensor:
        self._length += len(items)
        device = self._slot.device
        ids, kinds = torch.tensor([[(i, kind) for kind, i in items]], device=device).unbind(2)
        count = torch.tensor([len(items)], device=device)
        return self._v1.score_items(ids, kinds, count, self._slot, self._pool, self._length, self._speakers)


@dataclass
class _Stream:
    """What a part needs of the part before."""

    noise: Tensor | None = None  # [1, F + O, mel] of the prompt and of the overlap
    known: Tensor | None = None  # [1, F + O, mel] token condition of the same frames
    held: Tensor | None = None  # [1, O, mel] mel of the overlap
    fade: FadeState | None = None


class V1Pipeline:
    """Synthesizes requests with the networks of one model directory."""

    def __init__(self, networks: Networks, draws: V1Draws | None = None) -> None:
        assert isinstance(networks.flow, V1Flow)
        self.networks = networks
        self._flow = networks.flow
        self._draws = draws or V1Draws()

    def speak(self, request: Request, *, stream: bool = False, speed: float = 1.0) -> Iterator[AudioChunk]:
        """Synthesize ``request.text``.

        Args:
            request: The utterance.
            stream: Render part by part.
            speed: Speech rate; not 1.0 only without ``stream``.
        """
        decoder = V1Decoder(self.networks, request)
        yield from self.render(
            request, decoder.decode(request), stream=stream, speed=speed, truncated=lambda: decoder.truncated
        )

    @torch.inference_mode()
    def render(
        self,
        request: Request,
        tokens: Iterable[int],
        *,
        stream: bool = False,
        speed: float = 1.0,
        truncated: Callable[[], bool] = lambda: False,
    ) -> Iterator[AudioChunk]:
        """Render speech tokens (from the language model, or from a recording for voice conversion).

        Yields nothing if there are no tokens.

        Raises:
            InvalidRequest: ``speed`` is out of range, or with ``stream``.
        """
        check_speed(stream, speed)
        dims = self._flow.dims
        state = _Stream()

        def plan(done: int, received: int, ended: bool) -> Chunk | None:
            return next_chunk(done, received, ended, dims.chunk_tokens, dims.lookahead_tokens)

        def mel_of(chunk: Chunk, received: list[int]) -> MelPart:
            mel = self._part(request, received[chunk.begin : chunk.known], state, chunk.final)
            return MelPart(mel.transpose(1, 2), mel.shape[1], chunk.known - chunk.begin)

        def vocode(chunk: Chunk, mel: Tensor) -> Tensor:
            return self._vocode(mel, state, chunk.final, speed)

        yield from render_chunks(chunks_of(tokens, plan if stream else None), mel_of, vocode, truncated)

    def _part(self, request: Request, tokens: list[int], state: _Stream, final: bool) -> Tensor:
        """Return the new mel frames ``[1, n, mel]`` of a part and change ``state``."""
        flow = self._flow
        prompt_mel = request.prompt_mel.reshape(1, -1, flow.dims.mel).to(flow.device)
        frames = prompt_mel.shape[1]
        noise = self._draws.state(frames + flow.dims.frames(len(tokens)), flow.dims.mel).to(flow.device)
        if state.noise is not None:
            noise = torch.cat([state.noise, noise[:, state.noise.shape[1] :]], dim=1)
        ids, prompt = (
            torch.tensor([row], dtype=torch.long, device=flow.device) for row in (tokens, list(request.flow_prompt))
        )
        spk = flow.speaker(request.embedding.reshape(1, -1).to(flow.device))
        mel, state.known = flow.part(ids, prompt, prompt_mel, spk, noise, state.known)
        overlap = flow.overlap_frames
        state.noise = torch.cat([noise[:, :frames], noise[:, -overlap:]], dim=1)
        mel = mel if state.held is None else fade_mel(mel, state.held)
        if final:
            return mel
        state.held = mel[:, -overlap:]
        return mel[:, :-overlap]

    def _vocode(self, mel: Tensor, state: _Stream, final: bool, speed: float) -> Tensor:
        """Return audio ``[1, n]`` of ``mel [1, mel, T]`` and change ``state``."""
        hift = self.networks.hift
        if speed != 1.0:
            mel = F.interpolate(mel, size=int(mel.shape[2] / speed), mode="linear")
        phase = self._draws.phase(hift.dims.nb_harmonics + 1).to(mel.device) / hift.dims.frame_samples
        audio, state.fade = reference_fade(hift, mel, state.fade, self._draws, final, phase)
        return audio
