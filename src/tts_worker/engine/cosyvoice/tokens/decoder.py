"""Decoding of speech tokens for many utterances: language model slots, prefill, and bursts of decode steps.

The device holds the last ids and the remaining draws of each slot. A burst runs several decode steps without the host;
a slot becomes idle once it draws a special id or uses up its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.graph_runner import (
    Compiler,
    Compute,
    GraphRunner,
    captured_rows,
    padded_rows,
)
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStream, PendingCopy, TimingEvent
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.networks.qwen2 import SpeechLM
from tts_worker.engine.cosyvoice.ops.language_model import (
    IDLE,
    NOT_FORCED,
    SPLIT_POSITIONS,
    begin_step,
    draw_ids,
    plan_draws,
    slot_attention,
)
from tts_worker.engine.cosyvoice.ops.sampler import DrawState
from tts_worker.engine.cosyvoice.v1.transformer_lm import TransformerLm

EXTRA_SLOTS = 2  # one to pad batches, one to compute prefixes
CONTEXT_BUCKET = 256
PREFILL_BUCKETS = (8, 64, 128, 192, 256, 384)
"""Inputs of a prefill where shapes are fixed; longer ones are fed in pieces."""
PREFILL_INPUTS = 1536  # most inputs of one pass, all utterances together
PREFILL_CONTEXT = 512  # shortest context of a prefill; longer ones are twice as long each
SHARED_INPUTS = 16  # a longer prefill runs alone where shapes are not fixed: padding would cost more than a pass
_PLAN_WIDTH = 6  # of a prefill: slot, special, special_from, budget, forced id, number of inputs


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """Plan of one slot for the next draws.

    Attributes:
        slot: The slot.
        special: The special id that may be drawn.
        special_from: Number of the first draw that may give the special id.
        budget: Most draws.
        forced: Ids that replace the first draws.
    """

    slot: int
    special: int
    special_from: int
    budget: int
    forced: Sequence[int] = ()

    def sent(self, steps: int) -> list[int]:
        """Return slot, special id, its first draw and budget, then the forced id of each of ``steps`` draws, if any."""
        forced = list(self.forced[:steps])
        return [self.slot, self.special, self.special_from, self.budget, *forced, *[NOT_FORCED] * (steps - len(forced))]


@dataclass(frozen=True)
class Prefix:
    """The start of a sequence and its keys and values ``[layers, 2, heads, len(items), dim]``. Read-only."""

    items: tuple[Item, ...]
    kv: Tensor


@dataclass(frozen=True, slots=True)
class _PrefillRow:
    """One slot of a prefill.

    Attributes:
        plan: Plan of the draw; without a budget, nothing is drawn.
        items: Inputs.
        end: Inputs in the slot afterwards.
    """

    plan: DecodeRow
    items: Sequence[Item]
    end: int

    def sent(self, span: int) -> list[int]:
        """Return the plan, ``span`` ids and their kinds, padded."""
        padding = [0] * (span - len(self.items))
        ids = [i for _, i in self.items]
        kinds = [kind for kind, _ in self.items]
        return [*self.plan.sent(1), len(self.items), *ids, *padding, *kinds, *padding]


class Decoder:
    """Slots and steps of the language model.

    Args:
        networks: The networks.
        slots: Number of utterances.
        max_tokens: Longest sequence of a slot.
        stream: Stream of the language model.
        runner: Runs decode steps.
        checked: Fill memory with NaN, for tests.

    Attributes:
        max_tokens: Longest sequence of a slot.
    """

    def __init__(
        self,
        networks: Networks,
        *,
        slots: int,
        max_tokens: int,
        stream: ExecutionStream,
        runner: GraphRunner,
        checked: bool = False,
    ) -> None:
        dims = networks.config.lm
        weight = networks.lm.llm_decoder.weight
        self._lm: SpeechLM | TransformerLm = networks.lm
        if isinstance(self._lm, TransformerLm):
            self._lm.prepare(max_tokens + 1)
        self._dims = dims
        self._stream = stream
        self._runner = runner
        self.max_tokens = max_tokens
        device = weight.device
        count = slots + EXTRA_SLOTS
        self._padding_slot = slots
        self._prefix_slot = slots + 1
        self.pool = SlotPool(
            dims.cache_layers,
            count,
            dims.kv_heads,
            max_tokens,
            dims.head_dim,
            dtype=weight.dtype,
            device=device,
            checked=checked,
        )
        # Whether the fused attention is used, which reads only what is there. For good: the contexts follow from it,
        # and what is captured stays as it is when another engine of the process switches kernels off.
        self._has_slot_attention = isinstance(self._lm, SpeechLM) and slot_attention.is_fused(self.pool.data)
        # Inputs that tell the speakers; zeros for a sequence without one.
        self._speakers = weight.new_zeros(count, dims.hidden_size) if dims.has_speaker else None
        self._draws = DrawState(count, networks.config.sampling, device)
        self._remaining = torch.zeros(count, 1, dtype=torch.long, device=device)  # draws; 0: idle
        self._free = list(range(slots))[::-1]
        self._cached_items: list[list[Item]] = [[] for _ in range(count)]
        self._used_positions = [0] * count  # beyond them, the memory of a slot is zero

    # -- slots --------------------------------------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def acquire(self) -> int:
        """Take an empty slot. There must be a free one."""
        slot = self._free.pop()
        with self._stream:
            self.pool.reset(self._stream.to_device([slot]))
            self._erase(slot, 0)
        self._cached_items[slot] = []
        return slot

    def release(self, slot: int) -> None:
        """Return a slot."""
        self._free.append(slot)
        self._cached_items[slot] = []

    def length(self, slot: int) -> int:
        """Return the number of inputs in a slot."""
        return len(self._cached_items[slot])

    def free_positions(self, slot: int) -> int:
        """Return how many more inputs fit into a slot."""
        return self.max_tokens - len(self._cached_items[slot])

    def _erase(self, slot: int, length: int) -> None:
        """Erase what a former sequence, which may have been broken, wrote behind ``length``."""
        if self._used_positions[slot] > length:
            self.pool.erase(slot, length, self._used_positions[slot])
            self._used_positions[slot] = length

    def _use(self, slot: int, count: int) -> None:
        """Record that ``count`` positions are written behind the inputs of ``slot``."""
        end = min(self.length(slot) + count, self.max_tokens)
        self._used_positions[slot] = max(self._used_positions[slot], end)

    # -- sequences ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prefix(self, items: Sequence[Item], speaker: Tensor | None = None) -> Prefix:
        """Compute the keys and values of ``items``, shared by all sequences of ``speaker`` that start with them."""
        slot = self._prefix_slot
        with self._stream:
            at = self._stream.to_device([slot])
            self._set_speaker_embedding(slot, speaker)
            self.pool.reset(at)
            self._erase(slot, 0)
            self._used_positions[slot] = len(items)
            for begin, end in self._pieces(len(items)):
                self._run_prefill([_PrefillRow(DecodeRow(slot, 0, 0, 0), items[begin:end], end)])
            kv = self.pool.data[:, :, slot, :, : len(items)].clone()
        return Prefix(tuple(items), kv)

    @torch.inference_mode()
    def start(
        self,
        slot: int,
        seed: int,
        items: Sequence[Item],
        prefix: Prefix | None = None,
        speaker: Tensor | None = None,
    ) -> list[Item]:
        """Start a sequence in ``slot``, with draws of ``seed``.

        Keeps the common prefix of ``items`` and the contents of the slot (or of ``prefix``). All sequences of an
        utterance have the same speaker.

        Args:
            slot: The slot.
            seed: Seed of the draws.
            items: Inputs.
            prefix: A start of the inputs that is computed.
            speaker: Embedding ``[spk_embed]``, if the items tell the speaker.

        Returns:
            The items that must be fed.
        """
        cached = _common_prefix_length(self._cached_items[slot], items)
        with self._stream:
            at = self._stream.to_device([slot])
            self._set_speaker_embedding(slot, speaker)
            prefix_length = 0 if prefix is None else _common_prefix_length(prefix.items, items)
            if prefix is not None and prefix_length == len(prefix.items) > cached:
                cached = prefix_length
                self.pool.data[:, :, slot, :, :cached] = prefix.kv
                self._used_positions[slot] = max(self._used_positions[slot], cached)
            cached = min(cached, len(items) - 1)  # the scores after the last item are needed
            self.pool.lengths[at] = cached
            self._erase(slot, cached)
            self._draws.start(at, self._stream.to_device([seed]))
        self._cached_items[slot] = list(items[:cached])
        return list(items[cached:])

    def _set_speaker_embedding(self, slot: int, speaker: Tensor | None) -> None:
        if self._speakers is not None and isinstance(self._lm, TransformerLm):
            self._speakers[slot] = 0.0
            if speaker is not None:
                self._speakers[slot] = self._lm.speaker(speaker[None].to(self._speakers.device))[0]

    @torch.inference_mode()
    def restore(self, slot: int, seed: int, drawn: Sequence[int]) -> list[Item]:
        """Reset ``slot`` after a failed pass, with ``drawn`` recorded as the draws so far.

        Returns:
            The items that the slot held, which must be fed again.
        """
        items = list(self._cached_items[slot])
        self._cached_items[slot] = []
        with self._stream:
            self.pool.reset(self._stream.to_device([slot]))
            self._erase(slot, 0)
            self._draws.start(self._stream.to_device([slot]), self._stream.to_device([seed]))
        self.record_draws(slot, drawn)
        return items

    @torch.inference_mode()
    def record_draws(self, slot: int, ids: Sequence[int]) -> None:
        """Record ``ids`` as drawn in ``slot``."""
        with self._stream:
            for token in ids:
                self._draws.record(self._stream.to_device([slot]), self._stream.to_device([token]))

    # -- steps --------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(self, rows: Sequence[DecodeRow], items: Sequence[Sequence[Item]]) -> PendingCopy:
        """Feed each slot its ``items`` and draw one id each: ``[1, B]``."""
        with self._stream:
            copy = self._stream.to_host(self._feed(rows, items).T)
        self._record_items(rows, items)
        return copy

    @torch.inference_mode()
    def prefill_and_burst(
        self, rows: Sequence[DecodeRow], items: Sequence[Sequence[Item]], draws: int
    ) -> tuple[Tensor, PendingCopy, TimingEvent]:
        """Feed each slot its ``items`` and draw ``draws`` ids without the host.

        Returns:
            The ids ``[draws, B]`` on the device, and on their way to the host, and the end of the prefill. Pass each
            column but its first id to ``record_burst``.
        """
        slots = [row.slot for row in rows]
        longest = max(self.length(slot) + len(part) for slot, part in zip(slots, items, strict=True))
        following = [replace(row, forced=row.forced[1:]) for row in rows]
        with self._stream:
            first = self._feed(rows, items, draws)
            prefilled = self._stream.record_event()
            at = self._stream.to_device(slots)
            remaining = self._remaining[at]  # none if the first id has ended the run
            plans = self._plan_draws(self._padded(following), draws - 1)
            self._remaining[at] = remaining
            ids = torch.cat([first.T, self._decode(plans, len(rows), longest)])
            copy = self._stream.to_host(ids)
        self._record_items(rows, items)
        return ids, copy, prefilled

    def _record_items(self, rows: Sequence[DecodeRow], items: Sequence[Sequence[Item]]) -> None:
        for row, part in zip(rows, items, strict=True):
            self._cached_items[row.slot] += part

    def _feed(self, rows: Sequence[DecodeRow], items: Sequence[Sequence[Item]], draws: int = 1) -> Tensor:
        """Feed each slot its ``items``. Returns the first of ``draws`` ids of each, ``[B, 1]``.

        Where shapes are fixed, several passes may follow each other without the host: the first pieces of long inputs,
        which draw nothing, then the utterances by length.
        """
        first: dict[int, list[_PrefillRow]] = {}  # by number of the piece
        last: list[tuple[int, _PrefillRow]] = []
        for index, (row, part) in enumerate(zip(rows, items, strict=True)):
            self._use(row.slot, len(part) + draws - 1)
            cached = self.length(row.slot)
            *pieces, (begin, end) = self._pieces(len(part))
            for number, (start, stop) in enumerate(pieces):
                idle = DecodeRow(row.slot, 0, 0, 0)
                first.setdefault(number, []).append(_PrefillRow(idle, part[start:stop], cached + stop))
            last.append((index, _PrefillRow(row, part[begin:end], cached + end)))
        if self._runner.fixed_shapes:
            last.sort(key=lambda member: len(member[1].items))
        for members in first.values():
            self._run_prefill(members)
        ids = self._run_prefill([row for _, row in last])
        order = [index for index, _ in last]
        if order != sorted(order):
            ids = ids[self._stream.to_device([order.index(index) for index in range(len(order))])]
        return ids

    @property
    def shared_inputs(self) -> int:
        """Most inputs of a prefill that shares a batch."""
        return self.max_tokens if self._runner.fixed_shapes else SHARED_INPUTS

    def _pieces(self, inputs: int) -> list[tuple[int, int]]:
        """Return the pieces in which a prefill is fed."""
        size = PREFILL_BUCKETS[-1] if self._runner.fixed_shapes else inputs
        return [(begin, min(begin + size, inputs)) for begin in range(0, inputs, size)]

    def _run_prefill(self, members: Sequence[_PrefillRow]) -> Tensor:
        """Feed ``members``, ordered by length where shapes are fixed. Returns the drawn ids ``[B, 1]``."""
        drawn = []
        while members:
            count = len(members)
            span = max(len(member.items) for member in members)
            if self._runner.fixed_shapes:
                # The longest ones first, as many as fit into one pass.
                span = next(size for size in PREFILL_BUCKETS if size >= span)
                count = min(count, _prefill_rows(span))
            drawn.append(self._prefill_pass(members[-count:], span))
            members = members[:-count]
        return torch.cat(drawn[::-1])

    def _prefill_pass(self, members: Sequence[_PrefillRow], span: int) -> Tensor:
        rows = len(members)
        if self._runner.fixed_shapes:
            rows = padded_rows(rows)
        context = self._prefill_context(max(span, *(member.end for member in members)))
        sent = [member.sent(span) for member in members]
        sent += [_PrefillRow(DecodeRow(self._padding_slot, 0, 0, 0), (), 0).sent(span)] * (rows - len(members))
        key = ("prefill", rows, span, context)
        (ids,) = self._runner.run(key, self._prefill_step(span, context), (self._stream.to_device(sent),))
        return ids[: len(members)].clone()  # a graph reuses its output buffer

    def _prefill_step(self, span: int, context: int) -> Callable[[Tensor], tuple[Tensor]]:
        def step(sent: Tensor) -> tuple[Tensor]:
            ids, kinds = sent[:, _PLAN_WIDTH:].tensor_split((span,), dim=1)  # [B, T] each
            plan = plan_draws(sent[:, : _PLAN_WIDTH - 1], self._draws.keys, self._draws.steps, self._remaining)[0]
            slots = plan[0, :, 0]
            new = sent[:, _PLAN_WIDTH - 1]
            scores = self._lm.score_items(ids, kinds, new, slots, self.pool, context, self._speakers)
            return (self._draw(scores, plan, slots),)

        return step

    def _prefill_context(self, longest: int) -> int:
        """Return the context of a prefill. The fused attention reads what is there, so that one suffices."""
        if not self._runner.fixed_shapes:
            return min(longest, self.max_tokens)
        if self._has_slot_attention:
            return self.max_tokens
        context = PREFILL_CONTEXT
        while context < longest:
            context *= 2
        return min(context, self.max_tokens)

    @torch.inference_mode()
    def burst(self, rows: Sequence[DecodeRow], steps: int) -> PendingCopy:
        """Run ``steps`` decode steps: ids ``[steps, B]``. Pass each column to ``record_burst``."""
        for row in rows:
            self._use(row.slot, steps)
        longest = max(self.length(row.slot) for row in rows)
        with self._stream:
            ids = self._decode(self._plan_draws(self._padded(rows), steps), len(rows), longest)
            return self._stream.to_host(ids)

    def _padded(self, rows: Sequence[DecodeRow]) -> list[DecodeRow]:
        """Pad a batch to a power of two where shapes are fixed."""
        missing = padded_rows(len(rows)) - len(rows) if self._runner.fixed_shapes else 0
        return [*rows, *[DecodeRow(self._padding_slot, 0, 0, 0)] * missing]

    def _decode(self, plans: Sequence[Tensor], rows: int, longest: int) -> Tensor:
        """Run a decode step for each of ``plans``.

        Args:
            plans: Plans of a padded batch.
            rows: Utterances of the batch.
            longest: Most inputs in a slot before.

        Returns:
            The drawn ids, ``[steps, B]``.
        """
        drawn = []
        for step, plan in enumerate(plans):
            reach = len(plans) if self._runner.fixed_shapes else step + 1
            context = self._decode_context(longest + reach)
            key = ("decode", plan.shape[1], context)
            ids = self._runner.run(key, self._decode_step(context), (plan,))[0]
            drawn.append(ids.clone())
        return torch.stack(drawn)[:, :rows, 0]

    def record_burst(self, slot: int, ids: Sequence[int], last: int) -> list[int]:
        """Record the inputs that a burst fed to ``slot``.

        Args:
            slot: The slot.
            ids: Its column of the burst.
            last: The last id before the burst.

        Returns:
            The drawn ids.
        """
        drawn = [token for token in ids if token != IDLE]
        for token in [last, *drawn][: len(drawn)]:
            self._cached_items[slot].append((Kind.SPEECH, token))
        return drawn

    @torch.inference_mode()
    def capture(self, batch: int, compiler: Compiler | None = None) -> None:
        """Capture prefills and decode steps of every shape, in the padding slot.

        Args:
            batch: Most utterances in a pass.
            compiler: Compiles the decode steps of a single utterance, in which launches weigh most.
        """
        idle = _PrefillRow(DecodeRow(self._padding_slot, 0, 0, 0), (), 0)
        for span in reversed(PREFILL_BUCKETS):
            lengths = range(min(span, self.max_tokens), self.max_tokens + 1)
            most = min(batch, _prefill_rows(span))
            for context in sorted({self._prefill_context(length) for length in lengths}, reverse=True):
                for rows in captured_rows(most):
                    with self._stream:
                        sent = self._stream.to_device([idle.sent(span)] * rows)
                        shape = ("prefill", rows, span, context)
                        self._runner.capture(shape, self._prefill_step(span, context), (sent,))
        contexts = sorted({self._decode_context(n) for n in range(1, self.max_tokens + 1)}, reverse=True)
        for rows in captured_rows(batch):
            for context in contexts:  # the largest first: the smaller ones reuse its memory
                with self._stream:
                    key = ("decode", rows, context)
                    step = self._decode_step(context)
                    if compiler is not None and rows == 1:
                        step = self.compile_step(rows, context, compiler)
                    (plan,) = self._plan_draws([DecodeRow(self._padding_slot, 0, 0, 0)] * rows, 1)
                    self._runner.capture(key, step, (plan,))

    def compile_step(self, rows: int, context: int, compiler: Compiler) -> Compute:
        """Return a decode step of one or two utterances, compiled if that gives the same numbers in unused slots.

        In half precision the id is forced: scores that are rounded differently may give another draw.
        """
        forced = () if self.pool.data.dtype == torch.float32 else (1,)
        slots = (self._padding_slot, self._prefix_slot)[:rows]
        (plan,) = self._plan_draws([DecodeRow(slot, self._dims.eos_id, 0, 1, forced) for slot in slots], 1)
        state = (self._remaining, self._draws.recent, self._draws.steps, self.pool.lengths)
        step = compiler.compile(("decode", rows, context), self._decode_step(context), (plan,), state)
        self._remaining.zero_()
        return step

    def _plan_draws(self, rows: Sequence[DecodeRow], steps: int) -> Sequence[Tensor]:
        """Upload the plan of the next draws: for each step ``[4, B, 1]``, as ``plan_draws`` returns it."""
        sent = self._stream.to_device([row.sent(steps) for row in rows])
        return plan_draws(sent, self._draws.keys, self._draws.steps, self._remaining).unbind()

    def _decode_context(self, longest: int) -> int:
        """Return the context of a decode step. The fused attention reads what is there, so that two suffice."""
        if self._runner.fixed_shapes and self._has_slot_attention:
            longest = SPLIT_POSITIONS if longest <= SPLIT_POSITIONS else self.max_tokens
        elif self._runner.fixed_shapes:
            longest = -(-longest // CONTEXT_BUCKET) * CONTEXT_BUCKET
        return min(longest, self.max_tokens)

    def _decode_step(self, context: int) -> Compute:
        """Return the step: drawn ids ``[B, 1]``, and the scores, which show that a compiled step is right."""

        def step(plan: Tensor) -> tuple[Tensor, Tensor]:
            slots = plan[0, :, 0]
            table = self._lm.speech_table
            x, positions, ends = begin_step(
                slots, self._remaining, self._draws.recent, self.pool.lengths, table, self.max_tokens
            )
            scores = self._lm.step_logits(x, positions, ends, slots, self.pool, context)
            return self._draw(scores, plan, slots), scores

        return step

    def _draw(self, scores: Tensor, plan: Tensor, slots: Tensor) -> Tensor:
        """Draw one id ``[B, 1]`` per slot from ``scores [B, V]`` by one step of ``_plan_draws``."""
        draws = self._draws
        rule = draws.rule
        speech = self._dims.speech_tokens
        state = (self._remaining, draws.recent, draws.steps)
        return draw_ids(scores, plan, slots, *state, speech, rule.top_p, rule.top_k, rule.repeats)


def _common_prefix_length(a: Sequence[Item], b: Sequence[Item]) -> int:
    """Return the length of the common prefix."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))


def _prefill_rows(span: int) -> int:
    """Return the most utterances of one prefill pass: a power of two."""
    return 1 << ((PREFILL_INPUTS // span).bit_length() - 1)
