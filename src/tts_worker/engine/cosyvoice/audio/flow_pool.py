"""Allocation of slots and pages for streaming the flow chunk by chunk.

``FlowPool`` owns the preallocated memory and its free lists; ``FlowState`` is what one utterance (or the prompt of one
voice) holds. Host bookkeeping only: it turns states into the index tensors of ``Flow.chunk``. The pages of a voice's
prompt are shared by all utterances opened on it and never written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_worker.engine.cosyvoice.execution.graph_runner import (
    Compiler,
    Compute,
    EagerRunner,
    GraphRunner,
    Tensors,
    captured_rows,
    padded_rows,
)
from tts_worker.engine.cosyvoice.networks.blocks import Estimator, Sites, chunk_mask
from tts_worker.engine.cosyvoice.networks.dims import FlowDims
from tts_worker.engine.cosyvoice.networks.flow import ChunkPast, Flow, Velocity
from tts_worker.engine.cosyvoice.networks.flow_encoder import EncoderPast
from tts_worker.engine.cosyvoice.networks.kv_cache import (
    IndexedPast,
    Memory,
    PagedLibrary,
    PagedMemory,
    PagedView,
    PageRow,
    PageShape,
)
from tts_worker.engine.cosyvoice.ops.audio import paged_attention
from tts_worker.errors import OutOfMemory

UNPAGED = 1 << 30  # pages that are never taken
FLOW_TOLERANCE = 3e-5
"""Largest difference of a compiled solver step in float32: two dozen layers in another order of operations."""


@dataclass
class FlowState:
    """One utterance in the pool: its slot, its pages in time order and the number of tokens computed."""

    slot: int
    pages: list[int] = field(default_factory=list)
    shared: int = 0  # number of leading pages that belong to the voice
    tokens: int = 0


@dataclass(kw_only=True)
class FlowPrompt:
    """The prompt of a voice in the flow, which all its audio segments continue.

    Attributes:
        prompt: Speech ids, ``P`` of them.
        prompt_mel: Mel, ``[2P, mel]``; on the device once the preparation has begun.
        spk: Speaker condition of the flow, ``[1, mel]``; empty before the preparation.
        flow: Flow state of the chunks computed so far.
    """

    prompt: tuple[int, ...]
    prompt_mel: Tensor
    spk: Tensor = field(default_factory=lambda: torch.empty(0))
    flow: FlowState | None = None


class FlowPool:
    """Memory of the flow for utterances and voices.

    Args:
        flow: The flow.
        slots: Most utterances and voices at a time.
        pages: Chunks of all of them.
        max_chunks: Most chunks of one.
        dtype: Of the memory.
        checked: Fill memory with NaN, for tests.
        runner: Runs the passes.
        page_bucket: Page tables are rounded up to it and, if it is more than 1, batches to powers of two, so that there
            are few distinct shapes.
        library: Returns what computes the estimator's attention, if a library does.
    """

    def __init__(
        self,
        flow: Flow,
        *,
        slots: int,
        pages: int,
        max_chunks: int,
        dtype: torch.dtype = torch.float32,
        checked: bool = False,
        runner: GraphRunner | None = None,
        page_bucket: int = 1,
        library: Callable[[PageShape], PagedLibrary] | None = None,
    ) -> None:
        dims = flow.dims
        device = flow.noise.device
        self.flow = flow
        self.device = device
        self.max_chunks = max_chunks
        self.chunk_tokens = flow.chunk_frames // dims.frames_per_token
        self._runner = runner or EagerRunner()
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
        self.estimator = memory(2 * dims.steps - 1, sites, heads, head_dim, flow.chunk_frames, slots, pages)
        count = self.estimator.data.shape[4]
        self._library = library and library(PageShape(heads, head_dim, flow.chunk_frames, count, max_chunks))
        # The unconditional branch of the first step depends on the position only: shared, slot c = before chunk c.
        self._null = memory(1, sites, heads, head_dim, flow.chunk_frames, max_chunks + 2, max_chunks + 1)
        self._null.reset(torch.zeros(1, dtype=torch.long, device=device))
        self._null_chunks = 0  # chunks whose full velocity is tabulated
        self._null_velocity: dict[tuple[int, int], Tensor] = {}  # by chunk and frames, [1, chunk_frames, mel]

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
            raise OutOfMemory("all flow slots are taken: end an utterance, or raise max_utterances")
        state = FlowState(self._slots[-1])
        for memory in (*self._front, self.estimator):
            if voice is None:
                memory.reset(self._upload([state.slot]))
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

    def _upload(self, rows: Sequence[Sequence[int]] | Sequence[int]) -> Tensor:
        """Copy integers to the device without waiting for it: the stream may wait for another one."""
        host = torch.tensor(rows)
        return host.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else host

    def _null_at(self, chunk: int, frames: int) -> Tensor:
        """Unconditional velocity of the first step in ``chunk`` with ``frames`` frames: ``[1, chunk_frames, mel]``."""
        size = self.flow.chunk_frames
        for done in range(self._null_chunks, chunk + 1):
            self._null.copy_tails(done, done + 1)
            self._null_velocity[done, size] = self._run_null(done, done + 1, size)
            self._null_chunks = done + 1  # its slot now holds the state after the chunk
        if (chunk, frames) not in self._null_velocity:
            scratch = self.max_chunks + 1  # a partial last chunk has fewer keys; no other chunk follows it
            self._null.copy_tails(chunk, scratch)
            self._null_velocity[chunk, frames] = self._run_null(chunk, scratch, frames)
        return self._null_velocity[chunk, frames]

    def _run_null(self, chunk: int, slot: int, frames: int) -> Tensor:
        page = chunk + 1 if frames == self.flow.chunk_frames else self.max_chunks + 1
        table = [*range(1, chunk + 1), page]
        table += [0] * (self._rounded_pages(len(table)) - len(table))
        index = self._upload([[slot, chunk * self.flow.chunk_frames, frames, page, *table]])
        return self._runner.run(("null", len(table)), self._null_pass, (index,))[0].clone()

    def _null_pass(self, index: Tensor) -> Tensors:
        """``index [1, 4 + pages]``: slot, first frame, frames, fresh page, page table."""
        size = self.flow.chunk_frames
        slot, start, frames, page = index[0, :4, None].unbind()  # [1] each
        table = index[:, 4:]
        mask = chunk_mask(start, start + frames, size, table.shape[1] * size, size)
        memory = self._null.view(slot, table, page[None], slice(0, 1), start, start + frames)
        dtype = self.flow.dtype
        x = self.flow.noise_at(start, size).to(dtype)
        zeros = torch.zeros(1, size, self.flow.dims.mel, dtype=dtype, device=self.device)
        tables = self.flow.time_tables[:1]
        return (self.flow.estimator(x, zeros, zeros[:, 0], zeros, tables, start, mask, memory).float(),)

    def _rounded_pages(self, pages: int) -> int:
        """Round the length of a page table up, at most to the longest one."""
        return min(-(-pages // self._page_bucket) * self._page_bucket, max(pages, self.max_chunks))

    @torch.inference_mode()
    def advance(self, states: list[FlowState], tokens: Tensor, known: list[int], spk: Tensor, cond: Tensor) -> Tensor:
        """Compute the next n chunks of each utterance.

        Args:
            states: The utterances.
            tokens: ``[B, n*chunk + lookahead]`` ids from where each stands.
            known: How many of them exist; fewer only at the end.
            spk: Speaker conditions ``[B, mel]``.
            cond: Prompt mel or zeros, ``[B, n*chunk_frames, mel]``.

        Returns:
            Mel ``[B, n*chunk_frames, mel]``.

        Raises:
            OutOfMemory: There are too few pages. Nothing has changed.
        """
        size = self.chunk_tokens
        ratio = self.flow.dims.frames_per_token
        chunks = tokens.shape[1] // size
        if len(self._pages) < chunks * len(states):
            raise OutOfMemory("all flow pages are taken: end an utterance, or raise memory_gb")
        if any(len(state.pages) + chunks > self.max_chunks for state in states):
            raise OutOfMemory(f"an utterance may last {self.max_chunks} chunks here: end it, or raise max_segment_s")
        for state in states:
            state.pages += [self._pages.pop() for _ in range(chunks)]
        longest = self._rounded_pages(max(len(state.pages) for state in states))
        null = []
        plan = []
        for s, n in zip(states, known, strict=True):
            ends = [min(n - i * size, size) * ratio for i in range(chunks)]
            null.append(torch.cat([self._null_at(s.tokens // size + i, end) for i, end in enumerate(ends)], dim=1))
            plan.append([s.slot, s.tokens, n, *s.pages[-chunks:], *s.pages, *[0] * (longest - len(s.pages))])
        missing = padded_rows(len(states)) - len(states) if self._page_bucket > 1 else 0
        plan += self._padding_plan(missing, chunks, longest)
        inputs = [torch.cat([x, x[:1].expand(missing, *x.shape[1:])]) for x in (tokens, spk, cond, torch.cat(null))]
        index = self._upload(plan)
        self._plan_attention(plan, chunks)
        (mel,) = self._runner.run(("flow", chunks, len(plan), longest), self._advance, (index, *inputs))
        for state, n in zip(states, known, strict=True):
            state.tokens += min(n, chunks * size)
        return mel[: len(states)]

    def _plan_attention(self, plan: Sequence[Sequence[int]], chunks: int) -> None:
        """Tell the library about a pass of ``chunks`` chunks, by the rows of ``_advance``'s index."""
        if self._library is not None and isinstance(self.flow.estimator, Estimator):
            ratio = self.flow.dims.frames_per_token
            most = chunks * self.chunk_tokens
            rows = [PageRow(row[3 + chunks :], row[1] * ratio, (row[1] + min(row[2], most)) * ratio) for row in plan]
            self._library.plan(rows, chunks)

    @torch.inference_mode()
    def capture(self, batch: int, strides: Sequence[int], compiler: Compiler | None = None) -> None:
        """Capture passes of every rounded shape, on padding memory, and fill the table of the first step.

        Args:
            batch: Most utterances in a pass.
            strides: Numbers of chunks in a pass.
            compiler: Compiles the solver steps of a single utterance.
        """
        scratch = self.max_chunks + 1
        tables = sorted({self._rounded_pages(pages) for pages in range(1, self.max_chunks + 1)}, reverse=True)
        for pages in tables:  # the largest first: the smaller ones reuse its memory
            index = torch.tensor([[scratch, 0, 1, scratch, scratch, *[0] * (pages - 1)]], device=self.device)
            self._runner.capture(("null", pages), self._null_pass, (index,))
        for chunk in range(self.max_chunks):
            self._null_at(chunk, self.flow.chunk_frames)
        for rows in captured_rows(batch):
            for chunks in strides:
                for pages in tables:
                    if pages >= chunks:
                        inputs = self._padding_inputs(rows, chunks, pages)
                        self._plan_attention(self._padding_plan(rows, chunks, pages), chunks)
                        compute: Compute = self._advance
                        if compiler is not None and rows == 1 and self._library is None:
                            compute = partial(self._advance, velocity=self.compile_velocity(inputs, compiler))
                        self._runner.capture(("flow", chunks, rows, pages), compute, inputs)

    def compile_velocity(self, inputs: Tensors, compiler: Compiler) -> Velocity | None:
        """Return the estimator compiled for the shapes of a pass over ``inputs``, or None if it is not compiled.

        Every solver step has other pages. They are inputs of the program, so that all steps share it; the first step,
        of one branch, has a separate one.
        """
        calls: dict[int, tuple[Tensor | None, ...]] = {}

        def record(
            x: Tensor, positions: Tensor | None, table: Tensor, mask: Tensor | None, past: PagedView | IndexedPast
        ) -> Tensor:
            memory = past.indexed if isinstance(past, PagedView) else past
            arguments = (x, positions, table, mask, *memory.indexes)
            calls.setdefault(x.shape[0], tuple(None if each is None else each.clone() for each in arguments))
            return self._velocity(*arguments)[0]

        if isinstance(self.flow.estimator, Estimator) and not paged_attention.is_fused(inputs[0]):
            partial(self._advance, velocity=record)(*inputs)
        memory = self.estimator
        state = [tail[:, self._padding_slot] for tail in memory.tails]
        state.append(memory.data[..., self._padding_page, :, :])
        compiled: dict[int, Compute] = {}
        for rows, arguments in calls.items():
            key = ("flow", *(tuple(each.shape) for each in arguments if each is not None))
            program = compiler.compile(key, self._velocity, arguments, state, FLOW_TOLERANCE)
            if program == self._velocity:
                return None
            compiled[rows] = program

        def velocity(
            x: Tensor, positions: Tensor | None, table: Tensor, mask: Tensor | None, past: PagedView
        ) -> Tensor:
            return compiled[x.shape[0]](x, positions, table, mask, *past.indexed.indexes)[0]

        return velocity if compiled else None

    def _velocity(
        self,
        x: Tensor,
        positions: Tensor | None,
        table: Tensor,
        mask: Tensor | None,
        slots: Tensor,
        pages: Tensor,
        fresh: Tensor,
    ) -> Tensors:
        """``Estimator.velocity`` over an ``IndexedPast``."""
        past = IndexedPast(self.estimator, slots, pages, fresh)
        return (self.flow.estimator.velocity(x, positions, table, mask, past),)

    def _padding_inputs(self, rows: int, chunks: int, pages: int) -> Tensors:
        """Return inputs of ``_advance`` that write to padding memory only."""
        plan = self._padding_plan(rows, chunks, pages)
        span = chunks * self.chunk_tokens + self.flow.dims.lookahead_tokens
        tokens = torch.zeros(rows, span, dtype=torch.long, device=self.device)
        cond = self.flow.noise.new_zeros(rows, chunks * self.flow.chunk_frames, self.flow.dims.mel)
        return torch.tensor(plan, device=self.device), tokens, cond[:, 0], cond, cond

    def _padding_plan(self, rows: int, chunks: int, pages: int) -> list[list[int]]:
        """Return rows of ``_advance``'s index that have ``pages`` pages and write to padding memory only."""
        return [[self._padding_slot, 0, 1, *[self._padding_page] * (chunks + 1), *[0] * (pages - 1)]] * rows

    def _advance(
        self,
        index: Tensor,
        tokens: Tensor,
        spk: Tensor,
        cond: Tensor,
        null: Tensor,
        velocity: Velocity | None = None,
    ) -> Tensors:
        """``index [B, 3 + n + pages]``: slot, first token, available tokens, fresh pages, page table."""
        chunks = tokens.shape[1] // self.chunk_tokens
        slots, start, known = index[:, :3].T.contiguous()  # [B] each
        fresh, table = index[:, 3 : 3 + chunks], index[:, 3 + chunks :]
        views = [memory.view(slots, table, fresh) for memory in self._front]
        front: Memory | EncoderPast = EncoderPast(*views) if len(views) == 2 else views[0]
        past = ChunkPast(
            front, partial(self.estimator.view, slots, table, fresh, library=self._library), null, velocity
        )
        return (self.flow.chunk(tokens, known, start, table.shape[1] * self.chunk_tokens, spk, cond, past),)


def chunk_inputs(
    dims: FlowDims, tokens: Sequence[int], prompt_mel: Tensor, start: int, chunks: int = 1
) -> tuple[list[int], int, Tensor]:
    """Return the inputs of ``FlowPool.advance`` for one utterance.

    Args:
        dims: Dimensions of the flow.
        tokens: Speech ids of prompt and segment.
        prompt_mel: Mel of the prompt, ``[F, bins]``.
        start: First token of the pass.
        chunks: Number of chunks.

    Returns:
        Padded ids with lookahead, the number of ids before the padding, and the condition
        ``[1, chunks * chunk_frames, bins]``.
    """
    size = chunks * dims.chunk_tokens
    span = size + dims.lookahead_tokens
    frames = size * dims.frames_per_token
    ids = list(tokens[start : start + span])
    first = start * dims.frames_per_token
    cond = prompt_mel[first : first + frames]
    cond = F.pad(cond, (0, 0, 0, frames - cond.shape[0]))[None]
    return [*ids, *[0] * (span - len(ids))], len(ids), cond


class UnpagedPool:
    """Stands in for ``FlowPool`` where the flow computes whole sequences: there are slots of a stream, and no pages.

    Args:
        chunk_tokens: Tokens of a chunk.
        device: Device of the flow.
    """

    def __init__(self, chunk_tokens: int, device: torch.device) -> None:
        self.chunk_tokens = chunk_tokens
        self.device = device

    @property
    def free_pages(self) -> int:
        return UNPAGED

    def open(self, voice: FlowState | None = None) -> FlowState:
        """Return the state of an utterance, of ``voice`` if there is one, or of a voice."""
        return FlowState(0)

    def close(self, state: FlowState) -> None:
        """Return a state."""
