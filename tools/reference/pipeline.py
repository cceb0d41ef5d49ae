"""Synthesis of one utterance, from ids to audio, in every mode, whole or chunk by chunk, without any cache of the flow.

With ``Compat.reference()`` it reproduces the reference's numbers. With the defaults it is what the streaming engine is
compared with: every chunk is computed from the start of the utterance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.reference.algorithms import (
    DefaultGeneratorNoise,
    FadeState,
    Hop,
    NaturalNoise,
    ReferenceInterleave,
    ReferencePlan,
    reference_draw,
    reference_fade,
)
from tools.reference.compat import Compat
from tts_worker.engine.cosyvoice.audio.chunks import Chunk, GridPlan
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.hift import HashedNoise, Noise
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.ops.sampler import DrawState, draw
from tts_worker.engine.cosyvoice.tokens.guard import SILENT_TOKENS, SilenceFilter
from tts_worker.engine.cosyvoice.tokens.interleave import Draw, Interleave, InterleaveRule
from tts_worker.engine.cosyvoice.tokens.runs import MAX_RATIO, MIN_RATIO, RUN_PHASES, RunPhase
from tts_worker.engine.cosyvoice.voices.speaker import Request
from tts_worker.errors import InvalidRequest

INTERLEAVED_TOKENS = 4096  # longest interleaved sequence, text and speech together
MAX_SEED = 1 << 63


@dataclass(frozen=True)
class AudioChunk:
    """Audio rendered from the generated tokens ``[first_token, end_token)``.

    Attributes:
        index: Number of the chunk.
        samples: ``[n]`` float32, -1..1.
        start_sample: Position in the utterance.
        flow_tokens: Tokens that were passed to the flow.
        frames: Mel frames the flow returned.
        chunked: Whether the flow used the chunk mask.
        truncated: Whether the speech ended before the text.
        stages_ms: Time per stage.
        mel: ``[mel, frames]`` without the prompt.
    """

    index: int
    samples: Tensor
    start_sample: int
    first_token: int
    end_token: int
    flow_tokens: int
    frames: int
    chunked: bool
    final: bool
    truncated: bool
    stages_ms: tuple[tuple[str, float], ...]
    mel: Tensor


Progress = Callable[[int, int], None]
"""Called with the number of speech tokens and samples so far."""


def check_speed(stream: bool, speed: float) -> None:
    """Raise InvalidRequest for a speed that the reference does not support."""
    if stream and speed != 1.0:
        raise InvalidRequest("speed requires the whole utterance: disable streaming")
    if not 0.1 <= speed <= 10:
        raise InvalidRequest("speed must be between 0.1 and 10")


def chunks_of(
    tokens: Iterable[int], plan: Callable[[int, int, bool], Chunk | None] | None
) -> Iterator[tuple[Chunk, list[int]]]:
    """Divide tokens into the chunks to render, while they are generated.

    Args:
        tokens: The tokens.
        plan: ``(done, received, ended)`` -> the next chunk, None while it needs more tokens; None for all tokens at
            once.

    Yields:
        A chunk and all tokens received so far; nothing if there are no tokens.
    """
    source = iter(tokens)
    received = list[int]()
    done = 0
    ended = False
    while True:
        if plan is not None:
            chunk = plan(done, len(received), ended)
        else:
            chunk = Chunk(0, len(received), len(received), True) if ended else None
        if chunk is None:
            token = next(source, None)
            ended = token is None
            if token is not None:
                received.append(token)
            continue
        if chunk.begin == chunk.end:
            return
        yield chunk, received
        done = chunk.end
        if chunk.final:
            return


@dataclass(frozen=True)
class MelPart:
    """Mel of one chunk.

    Attributes:
        mel: ``[1, mel, frames]``, all that the flow returned.
        new_frames: How many of them, at the end, are to be heard.
        flow_tokens: Tokens that were passed to the flow.
        chunked: Whether the flow used the chunk mask.
    """

    mel: Tensor
    new_frames: int
    flow_tokens: int
    chunked: bool = False


def render_chunks(
    chunks: Iterable[tuple[Chunk, list[int]]],
    flow: Callable[[Chunk, list[int]], MelPart],
    vocode: Callable[[Chunk, Tensor], Tensor],
    truncated: Callable[[], bool],
    progress: Progress | None = None,
) -> Iterator[AudioChunk]:
    """Render chunks one after the other and time their stages.

    Args:
        chunks: What ``chunks_of`` yields; the language model runs in it.
        flow: Returns the mel of a chunk, given all tokens received so far.
        vocode: Converts the new frames of its mel, ``[1, mel, new_frames]``, to samples ``[1, n]``.
        truncated: Whether the speech ended before the text.
        progress: Called after each chunk.
    """
    samples = 0
    began = time.perf_counter()
    for index, (chunk, received) in enumerate(chunks):
        decoded = time.perf_counter()
        part = flow(chunk, received)
        flowed = time.perf_counter()
        audio = vocode(chunk, part.mel[:, :, part.mel.shape[2] - part.new_frames :])[0].cpu()
        vocoded = time.perf_counter()
        stages = (("lm", decoded - began), ("flow", flowed - decoded), ("vocoder", vocoded - flowed))
        yield AudioChunk(
            index,
            audio,
            samples,
            chunk.begin,
            chunk.end,
            part.flow_tokens,
            part.mel.shape[2],
            part.chunked,
            chunk.final,
            chunk.final and truncated(),
            tuple((name, s * 1000) for name, s in stages),
            part.mel[0],
        )
        samples += len(audio)
        began = time.perf_counter()
        if progress is not None:
            progress(len(received), samples)


class TokenDecoder:
    """Decodes one utterance with the language model."""

    def __init__(self, networks: Networks, compat: Compat, seed: int, capacity: int) -> None:
        dims = networks.config.lm
        rule = networks.config.sampling
        weight = networks.lm.llm_decoder.weight
        self._networks = networks
        self._dims = dims
        self._compat = compat
        self._rule = rule
        self._pool = SlotPool(
            dims.cache_layers, 1, dims.kv_heads, capacity, dims.head_dim, dtype=weight.dtype, device=weight.device
        )
        self._slot = torch.zeros(1, dtype=torch.long, device=weight.device)
        self._draws = DrawState(1, rule, weight.device)
        self._draws.start(self._slot, torch.tensor([seed % MAX_SEED], device=weight.device))
        self._ids = torch.arange(dims.speech_rows, device=weight.device)[None]  # [1, V]
        self._length = 0
        self._history = list[int]()
        self._phase = RunPhase.DRAWING

    @property
    def truncated(self) -> bool:
        """Whether a length limit ended it."""
        return self._phase is RunPhase.TRUNCATED

    def embed(self, items: Iterable[Item]) -> Tensor:
        """Embed inputs: ``[1, T, D]``."""
        device = self._ids.device
        lm = self._networks.qwen
        rows = []
        for kind, i in items:
            if kind in (Kind.SOS, Kind.TASK):
                rows.append(lm.embed_special(self._dims.sos_row if kind is Kind.SOS else self._dims.task_row))
            else:
                table = lm.embed_text if kind is Kind.TEXT else lm.embed_speech
                rows.append(table(torch.tensor([i], device=device)))
        return torch.cat(rows)[None]

    def feed(self, items: Sequence[Item]) -> Tensor:
        """Feed ``items`` and return the scores of the next id, ``[1, V]``."""
        self._length += len(items)
        count = torch.tensor([len(items)], device=self._slot.device)
        scores: Tensor = self._networks.qwen(self.embed(items), count, self._slot, self._pool, self._length)
        return scores

    def draw(self, scores: Tensor, special: int | None) -> int:
        """Sample the next id: a speech token, or ``special`` (the end or fill id) if given."""
        speech = self._ids < self._dims.speech_tokens
        allowed = speech if special is None else speech | (self._ids == special)
        if not self._compat.torch_draws:
            token = int(draw(scores, allowed, self._draws, self._slot))
        else:
            row = scores[0].cpu().clone()
            if not self._compat.eos_masked_by_wrong_id:
                row[~allowed[0].cpu()] = -torch.inf
            elif special != self._dims.eos_id:  # where the end is not allowed, the reference masks the first special id
                row[self._dims.speech_tokens] = -torch.inf
            token = reference_draw(row, self._history, self._rule)
        self.record(token)
        return token

    def record(self, token: int) -> None:
        """Append ``token`` to the history."""
        self._history.append(token)
        self._draws.record(self._slot, torch.tensor([token], device=self._slot.device))

    def start(self, request: Request) -> list[Item]:
        """Return the inputs up to the end of the text."""
        return [(Kind.SOS, 0), *((Kind.TEXT, i) for i in (*request.prompt_text, *request.text))]

    @torch.inference_mode()
    def decode(self, request: Request) -> Iterator[int]:
        """Yield the speech tokens of a complete text."""
        items = [*self.start(request), (Kind.TASK, 0), *((Kind.SPEECH, i) for i in request.lm_prompt)]
        for step in range(MAX_RATIO * len(request.text)):
            may_end = step >= MIN_RATIO * len(request.text)
            token = self.draw(self.feed(items), self._dims.eos_id if may_end else None)
            if token >= self._dims.speech_tokens:
                return
            yield token
            items = [(Kind.SPEECH, token)]
        self._phase = RunPhase.TRUNCATED

    @torch.inference_mode()
    def decode_interleaved(self, interleave: Interleave, text: Iterator[int]) -> Iterator[int]:
        """Yield the speech tokens of text that arrives token by token.

        Raises:
            SynthesisFailed: The model generated an id that is not valid at this point, as in the reference.
        """
        while not interleave.is_over:
            if interleave.wants_text:
                token = next(text, None)
                interleave.end() if token is None else interleave.push(token)
                continue
            items, draw_mode = interleave.feed()
            if self._length + len(items) > self._pool.max_tokens:
                self._phase = RunPhase.TRUNCATED
                return
            scores = self.feed(items)
            if draw_mode is Draw.FORCED_FILL:
                token = self._dims.fill_id
                self.record(token)
            else:
                token = self.draw(scores, self._dims.fill_id if draw_mode is Draw.MIDDLE else self._dims.eos_id)
            if interleave.take(token):
                yield token
        self._phase = RUN_PHASES[interleave.phase]


class OfflinePipeline:
    """Synthesizes requests with the networks of one model directory."""

    def __init__(self, networks: Networks, compat: Compat | None = None, noise: Noise | None = None) -> None:
        """``noise`` replaces the vocoder's noise in every utterance (the parity tool uses zeros)."""
        self.networks = networks
        self.compat = compat or Compat()
        self._noise = noise
        self._hop = Hop()

    def interleave(self, request: Request, prefix_end: int | None) -> Interleave:
        """The feed order for ``request`` whose text arrives later.

        Args:
            request: Provides the prompt.
            prefix_end: The text id that ends the instruction (CosyVoice3).

        Raises:
            InvalidRequest: ``prefix_end`` is not in the prompt text.
        """
        dims = self.networks.config.lm
        prompt = request.prompt_text
        cut = 0
        if prefix_end is not None:
            if prefix_end not in prompt:
                raise InvalidRequest("CosyVoice3 needs <|endofprompt|> in the prompt text")
            cut = prompt.index(prefix_end) + 1
        text, speech = self.networks.config.mix_ratio
        rule = InterleaveRule(dims.speech_tokens, dims.fill_id, dims.eos_id, text, speech, MAX_RATIO)
        return ReferenceInterleave(rule, prompt[:cut], prompt[cut:], request.lm_prompt, self.compat)

    def speak(
        self,
        request: Request,
        *,
        text: tuple[Interleave, Iterator[int]] | None = None,
        seed: int = 0,
        stream: bool = False,
        speed: float = 1.0,
        progress: Progress | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> Iterator[AudioChunk]:
        """Synthesize text.

        Args:
            request: The utterance.
            text: Feed order and text ids as they arrive, instead of ``request.text``.
            seed: Seed of sampling and noise.
            stream: Render chunk by chunk.
            speed: Speech rate; not 1.0 only without ``stream``.
            progress: Called after each chunk.
            on_token: Called with each speech token that is rendered.
        """
        if text is None:
            capacity = len(request.prompt_text) + len(request.lm_prompt) + (1 + MAX_RATIO) * len(request.text) + 2
            decoder = TokenDecoder(self.networks, self.compat, seed, capacity)
            tokens = decoder.decode(request)
        else:
            decoder = TokenDecoder(self.networks, self.compat, seed, INTERLEAVED_TOKENS)
            tokens = decoder.decode_interleaved(*text)
        silence = SilenceFilter(SILENT_TOKENS[self.networks.config.family])

        def rendered_tokens() -> Iterator[int]:
            for token in tokens:
                if silence.accepts(token):
                    if on_token is not None:
                        on_token(token)
                    yield token

        yield from self.render(
            request,
            rendered_tokens(),
            seed=seed,
            stream=stream,
            speed=speed,
            progress=progress,
            truncated=lambda: decoder.truncated,
        )

    def render(
        self,
        request: Request,
        tokens: Iterable[int],
        *,
        seed: int = 0,
        stream: bool = False,
        speed: float = 1.0,
        progress: Progress | None = None,
        truncated: Callable[[], bool] = lambda: False,
    ) -> Iterator[AudioChunk]:
        """Render speech tokens (from the language model, or from a recording for voice conversion).

        Yields nothing if there are no tokens.
        """
        check_speed(stream, speed)
        flow = self.networks.config.flow
        vocode = self._vocoder(seed, stream, speed)
        plan: GridPlan | ReferencePlan = GridPlan(len(request.flow_prompt), flow.chunk_tokens, flow.lookahead_tokens)
        if self.compat.growing_hop:
            hop = self._hop if self.compat.hop_shared_by_requests else Hop()
            plan = ReferencePlan(len(request.flow_prompt), hop, flow.lookahead_tokens)

        def mel_of(chunk: Chunk, received: list[int]) -> MelPart:
            chunked = stream and not (chunk.final and self.compat.full_mask_in_last_chunk)
            mel = self._mel(request, received[: chunk.known], chunk.final, chunked)
            return MelPart(mel, mel.shape[2] - chunk.begin * flow.frames_per_token, chunk.known, chunked)

        chunks = chunks_of(tokens, plan.next if stream else None)
        yield from render_chunks(chunks, mel_of, lambda chunk, mel: vocode(mel, chunk.final), truncated, progress)

    def _mel(self, request: Request, generated: list[int], final: bool, chunked: bool) -> Tensor:
        """Mel of all ``generated`` tokens, without the prompt: ``[1, mel, T]``."""
        flow = self.networks.chunked_flow
        device = flow.noise.device
        ratio = flow.dims.frames_per_token
        prompt = request.prompt_mel.reshape(1, -1, flow.dims.mel).to(device)
        if not self.compat.vc_prompt_uncut:
            prompt = prompt[:, : len(request.flow_prompt) * ratio]
        tokens = torch.tensor([[*request.flow_prompt, *generated]], device=device)
        lengths, frames = (torch.tensor([x.shape[1]], device=device) for x in (tokens, prompt))
        spk = flow.speaker(request.embedding.reshape(1, -1).to(device))
        mel = flow.mel(tokens, lengths, prompt, frames, spk, chunked=chunked, final=final)
        return mel[:, prompt.shape[1] :].transpose(1, 2)

    def _vocoder(self, seed: int, stream: bool, speed: float) -> Callable[[Tensor, bool], Tensor]:
        """A stateful vocoder: takes mel ``[1, mel, T]`` and whether it is final, returns audio ``[1, n]``."""
        hift = self.networks.hift
        config = self.networks.config
        device = self.networks.device
        noise = self._noise or HashedNoise(torch.tensor([seed % MAX_SEED], device=device), not config.hift.causal)
        if self._noise is None and self.compat.torch_draws:
            noise = NaturalNoise(config.chunked_flow, config.hift) if config.hift.causal else DefaultGeneratorNoise()
        if not stream:

            def whole(mel: Tensor, final: bool) -> Tensor:
                if speed != 1.0:
                    mel = F.interpolate(mel, size=int(mel.shape[2] / speed), mode="linear")
                audio: Tensor = hift(mel, noise)[0]
                return audio

            return whole
        state = hift.start(1, device)
        fade: FadeState | None = None

        def chunk(mel: Tensor, final: bool) -> Tensor:
            nonlocal state, fade
            if self.compat.loud_cross_fade and not config.hift.causal:
                audio, fade = reference_fade(hift, mel, fade, noise, final)
            else:
                audio, state = hift.stream(mel, state, noise, final)
            return audio

        return chunk
