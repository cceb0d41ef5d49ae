"""Allocation of slots and pages for streaming the flow chunk by chunk.

``FlowPool`` owns the preallocated memory and its free lists; ``FlowState`` is what one utterance (or the prompt of one
voice) holds. Host bookkeeping only: it turns states into the index tensors of ``Flow.chunk``. The pages of a voice's
prompt are shared by all utterances opened on it and never written again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.kv_cache import Memory, PagedMemory
from tts_worker.engine.cosyvoice.models.blocks import Sites, chunk_mask
from tts_worker.engine.cosyvoice.models.flow import ChunkPast, Flow
from tts_worker.engine.cosyvoice.models.flow_encoder import EncoderPast
from tts_worker.errors import OutOfMemory

Run = Callable[[Hashable, Callable[..., Tensor], tuple[Tensor, ...]], Tensor]
"""Runs a computation on tensors. The key identifies it and all shapes, so that a CUDA graph can be captured for it."""


def _run_eagerly(key: Hashable, compute: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
    return compute(*inputs)


@dataclass
class FlowState:
    """One utterance in the pool: its slot, its pages in time order and the number of tokens computed."""

    slot: int
    pages: list[int] = field(default_factory=list)
    shared: int = 0  # number of leading pages that belong to the voice
    tokens: int = 0


class FlowPool:
    """Memory for up to ``slots`` utterances and voices with ``pages`` chunks in total, at most ``max_chunks`` each."""

    def __init__(
        self,
        flow: Flow,
        *,
        slots: int,
        pages: int,
        max_chunks: int,
        dtype: torch.dtype = torch.float32,
        checked: bool = False,
        run: Run = _run_eagerly,
        page_bucket: int = 1,
    ) -> None:
        """``run`` executes the passes.

        Page tables are rounded up to ``page_bucket`` and, if that is more than 1, batches to powers of two, so that
        there are few distinct shapes.
        """
        dims = flow.dims
        device = flow.noise.device
        self.flow = flow
        self.device = device
        self.max_chunks = max_chunks
        self.chunk_tokens = flow.chunk_frames // dims.frames_per_token
        self._run = run
        self._page_bucket = page_bucket
        self._slots = list(range(slots))[::-1]
        self._pages = list(range(pages, 0, -1))  # page 0 is reserved for padding page tables
        # Targets for the writes of padded batch rows; never read.
        self._padding_slot = slots
        self._padding_page = pages + 1
        slots = slots + 1
        pages = pages + 1
        shape = dims.unet or dims.dit
        assert shape is not None
        heads = shape.heads
        head_dim = shape.head_dim
        sites = flow.estimator.sites

        def memory(rows: int, site: Sites, heads: int, head_dim: int, page: int, slots: int, pages: int) -> PagedMemory:
            return PagedMemory(
                rows,
                site.attentions,
                heads,
                head_dim,
                page,
                site.tails,
                pages=pages + 1,
                slots=slots,
                dtype=dtype,
                device=device,
                checked=checked,
            )

        if dims.encoder is not None:
            size = dims.encoder.heads
            n = dims.encoder.output_size // dims.encoder.heads
            self._front = [
                memory(1, flow.encoder.token_sites, size, n, self.chunk_tokens, slots, pages),
                memory(1, flow.encoder.frame_sites, size, n, flow.chunk_frames, slots, pages),
            ]
            flow.encoder.prepare((max_chunks + 1) * self.chunk_tokens)
        else:
            self._front = [memory(1, flow.front_sites, 1, 1, 1, slots, 0)]
        self._estimator = memory(2 * dims.steps - 1, sites, heads, head_dim, flow.chunk_frames, slots, pages)
        # The unconditional branch of the first step depends on the position only: shared, slot c = before chunk c.
        self._null = memory(1, sites, heads, head_dim, flow.chunk_frames, max_chunks + 2, max_chunks + 1)
        self._null.reset(torch.zeros(1, dtype=torch.long, device=device))
        self._null_velocity: list[Tensor] = []  # per chunk [1, chunk_frames, mel]

    @property
    def free_pages(self) -> int:
        return len(self._pages)

    @property
    def free_slots(self) -> int:
        return len(self._slots)

    def open(self, voice: FlowState | None = None) -> FlowState:
        """Open an utterance that continues after ``voice``, or an empty one.

        Raises:
            OutOfMemory: All slots are taken.
        """
        if not self._slots:
            raise OutOfMemory("all flow slots are taken: end an utterance or configure more slots")
        state = FlowState(self._slots[-1])
        for memory in (*self._front, self._estimator):
            if voice is None:
                memory.reset(torch.tensor([state.slot], device=self.device))
            else:
                memory.copy_tails(voice.slot, state.slot)
        if voice is not None:
            state.pages = list(voice.pages)
            state.shared = len(voice.pages)
            state.tokens = voice.tokens
        self._slots.remove(state.slot)  # last, when nothing can fail; another thread may have changed the order
        return state

    def close(self, state: FlowState) -> None:
        """Free the slot and the unshared pages of ``state``. Idempotent."""
        if state.slot >= 0:
            self._slots.append(state.slot)
            self._pages.extend(reversed(state.pages[state.shared :]))
            state.slot = -1
            state.pages = []
            state.shared = 0

    def _null_at(self, chunk: int, frames: int) -> Tensor:
        """Unconditional velocity of the first step in ``chunk`` with ``frames`` frames: ``[1, chunk_frames, mel]``."""
        while len(self._null_velocity) <= chunk:
            done = len(self._null_velocity)
            self._null.copy_tails(done, done + 1)
            self._null_velocity.append(self._null_run(done, done + 1, self.flow.chunk_frames))
            # slot done+1 now holds the state after the chunk
        if frames == self.flow.chunk_frames:
            return self._null_velocity[chunk]
        scratch = self.max_chunks + 1  # a partial last chunk has fewer keys: computed and not cached
        self._null.copy_tails(chunk, scratch)
        return self._null_run(chunk, scratch, frames)

    def _null_run(self, chunk: int, slot: int, frames: int) -> Tensor:
        size = self.flow.chunk_frames
        mel = self.flow.dims.mel
        page = chunk + 1 if frames == size else self.max_chunks + 1
        index = torch.tensor([[*range(1, chunk + 1), page]], device=self.device)
        start = torch.tensor([chunk * size], device=self.device)
        mask = chunk_mask(start, start + frames, size, index.shape[1] * size, size)
        memory = self._null.view(torch.tensor([slot], device=self.device), index, index[:, -1:])
        dtype = self.flow.time_tables.dtype
        x = self.flow.noise_at(start, size).to(dtype)
        table = self.flow.time_tables[:1]
        zeros = torch.zeros(1, size, mel, dtype=dtype, device=self.device)
        return self.flow.estimator(x, zeros, zeros[:, 0], zeros, table, start, mask, memory).float()

    @torch.inference_mode()
    def advance(self, states: list[FlowState], tokens: Tensor, known: list[int], spk: Tensor, cond: Tensor) -> Tensor:
        """Compute the next n chunks of each utterance: ``tokens [B, n*chunk+A]`` from where each stands, of which
        ``known`` exist (fewer only at the end), ``spk [B, mel]``, ``cond [B, n*chunk_frames, mel]`` (prompt mel or 0).
        Returns mel ``[B, n*chunk_frames, mel]``. Raises OutOfMemory before anything changed."""
        size = self.chunk_tokens
        ratio = self.flow.dims.frames_per_token
        chunks = tokens.shape[1] // size
        if len(self._pages) < chunks * len(states):
            raise OutOfMemory("all flow pages are taken: end an utterance or configure more pages")
        if any(len(state.pages) + chunks > self.max_chunks for state in states):
            raise OutOfMemory(f"an utterance may last {self.max_chunks} chunks here: end it or configure more")
        for state in states:
            state.pages += [self._pages.pop() for _ in range(chunks)]
        longest = max(len(state.pages) for state in states)
        longest = min(-(-longest // self._page_bucket) * self._page_bucket, max(longest, self.max_chunks))
        null = []
        plan = []
        for s, n in zip(states, known, strict=True):
            ends = [min(n - i * size, size) * ratio for i in range(chunks)]
            null.append(torch.cat([self._null_at(s.tokens // size + i, end) for i, end in enumerate(ends)], dim=1))
            plan.append([s.slot, s.tokens, n, *s.pages[-chunks:], *s.pages, *[0] * (longest - len(s.pages))])
        missing = (1 << (len(states) - 1).bit_length()) - len(states) if self._page_bucket > 1 else 0
        plan += [[self._padding_slot, 0, 1, *[self._padding_page] * (chunks + 1), *[0] * (longest - 1)]] * missing
        inputs = [torch.cat([x, x[:1].expand(missing, *x.shape[1:])]) for x in (tokens, spk, cond, torch.cat(null))]
        index = torch.tensor(plan).to(self.device, non_blocking=True)
        mel = self._run(("flow", chunks, index.shape), self._advance, (index, *inputs))
        for state, n in zip(states, known, strict=True):
            state.tokens += min(n, chunks * size)
        return mel[: len(states)]

    @torch.inference_mode()
    def capture_passes(self, batch: int) -> None:
        """Run one pass of every rounded shape on padding memory and fill the table of the first step."""
        size = self.chunk_tokens
        ahead = self.flow.dims.lookahead_tokens
        mel = self.flow.dims.mel
        for chunk in range(self.max_chunks):
            self._null_at(chunk, self.flow.chunk_frames)
        for pages in range(self._page_bucket, self.max_chunks + self._page_bucket, self._page_bucket):
            for rows in (1 << power for power in range((batch - 1).bit_length() + 1)):
                table = [self._padding_page, *[0] * (min(pages, self.max_chunks) - 1)]
                index = torch.tensor([[self._padding_slot, 0, 1, self._padding_page, *table]] * rows).to(self.device)
                cond = self.flow.noise.new_zeros(rows, self.flow.chunk_frames, mel)
                tokens = torch.zeros(rows, size + ahead, dtype=torch.long, device=self.device)
                self._run(("flow", 1, index.shape), self._advance, (index, tokens, cond[:, 0], cond, cond.clone()))

    def _advance(self, index: Tensor, tokens: Tensor, spk: Tensor, cond: Tensor, null: Tensor) -> Tensor:
        """``index [B, 3 + n + pages]``: slot, first token, available tokens, fresh pages, page table."""
        chunks = tokens.shape[1] // self.chunk_tokens
        (slots, start, known), fresh, table = index[:, :3].unbind(1), index[:, 3 : 3 + chunks], index[:, 3 + chunks :]
        views = [memory.view(slots, table, fresh) for memory in self._front]
        front: Memory | EncoderPast = EncoderPast(*views) if len(views) == 2 else views[0]
        past = ChunkPast(front, lambda rows: self._estimator.view(slots, table, fresh, rows), null)
        return self.flow.chunk(tokens, known, start, table.shape[1] * self.chunk_tokens, spk, cond, past)
