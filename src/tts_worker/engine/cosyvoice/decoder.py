"""Decoding of speech tokens for many utterances: language model slots, prefill, and bursts of decode steps.

The device holds the last ids and the remaining draws of each slot. A burst runs several decode steps without the host;
a slot becomes idle once it draws a special id or uses up its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.backends.graphs import Runner
from tts_worker.engine.cosyvoice.backends.streams import ExecutionStream, PendingCopy
from tts_worker.engine.cosyvoice.chunks import Item, Kind
from tts_worker.engine.cosyvoice.kv_cache import SlotPool
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.sampler import DrawState, pick

IDLE = -2  # in place of an id: the slot was idle
BROKEN = -1  # in place of an id: the scores were NaN
NOT_FORCED = -1
CONTEXT_BUCKET = 256


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


@dataclass(frozen=True)
class Prefix:
    """The start of a sequence and its keys and values ``[layers, 2, heads, len(items), dim]``. Read-only."""

    items: tuple[Item, ...]
    kv: Tensor


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
        steps: Forward passes so far.
        positions: Input vectors processed so far.
    """

    def __init__(
        self,
        networks: Networks,
        *,
        slots: int,
        max_tokens: int,
        stream: ExecutionStream,
        runner: Runner,
        checked: bool = False,
    ) -> None:
        dims = networks.config.lm
        weight = networks.lm.llm_decoder.weight
        self._lm = networks.lm
        self._dims = dims
        self._stream = stream
        self._runner = runner
        self.max_tokens = max_tokens
        device = weight.device
        count = slots + 2  # with one slot to pad batches and one to compute prefixes
        self._padding_slot = slots
        self._prefix_slot = slots + 1
        self._pool = SlotPool(
            dims.layers,
            count,
            dims.kv_heads,
            max_tokens,
            dims.head_dim,
            dtype=weight.dtype,
            device=device,
            checked=checked,
        )
        self._draws = DrawState(count, networks.config.sampling, device)
        self._remaining = torch.zeros(count, 1, dtype=torch.long, device=device)  # draws; 0: idle
        self._special_ids = torch.arange(dims.speech_tokens, dims.speech_rows, device=device)
        self._free = list(range(slots))[::-1]
        self._cached_items: list[list[Item]] = [[] for _ in range(count)]
        self.steps = 0
        self.positions = 0

    # -- slots --------------------------------------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def acquire(self) -> int:
        """Take an empty slot. There must be a free one."""
        slot = self._free.pop()
        with self._stream:
            self._pool.reset(self._stream.to_device([slot]))
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

    # -- sequences ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prefix(self, items: Sequence[Item]) -> Prefix:
        """Compute the keys and values of ``items``, shared by all sequences that start with them."""
        slot = self._prefix_slot
        with self._stream:
            at = self._stream.to_device([slot])
            self._pool.reset(at)
            self._forward(self._embed([items]), self._stream.to_device([len(items)]), at, len(items))
            kv = self._pool.data[:, :, slot, :, : len(items)].clone()
        return Prefix(tuple(items), kv)

    @torch.inference_mode()
    def start(self, slot: int, seed: int, items: Sequence[Item], prefix: Prefix | None = None) -> list[Item]:
        """Start a sequence in ``slot``, with draws of ``seed``.

        Keeps the common prefix of ``items`` and the contents of the slot (or of ``prefix``).

        Returns:
            The items that must be fed.
        """
        cached = _common_prefix_length(self._cached_items[slot], items)
        with self._stream:
            at = self._stream.to_device([slot])
            prefix_length = 0 if prefix is None else _common_prefix_length(prefix.items, items)
            if prefix is not None and prefix_length == len(prefix.items) > cached:
                cached = prefix_length
                self._pool.data[:, :, slot, :, :cached] = prefix.kv
            cached = min(cached, len(items) - 1)  # the scores after the last item are needed
            self._pool.lengths[at] = cached
            self._draws.start(at, self._stream.to_device([seed]))
        self._cached_items[slot] = list(items[:cached])
        return list(items[cached:])

    @torch.inference_mode()
    def restore(self, slot: int, seed: int, drawn: Sequence[int]) -> list[Item]:
        """Reset ``slot`` after a failed pass, with ``drawn`` recorded as the draws so far.

        Returns:
            The items that the slot held, which must be fed again.
        """
        items = list(self._cached_items[slot])
        self._cached_items[slot] = []
        with self._stream:
            self._pool.reset(self._stream.to_device([slot]))
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
        """Feed each slot its ``items``, padded to equal length, and draw one id each: ``[1, B]``."""
        counts = [len(part) for part in items]
        with self._stream:
            slots, (plan,) = self._plan_draws(rows, 1)
            context = self._context(max(self.length(row.slot) + n for row, n in zip(rows, counts, strict=True)))
            scores = self._forward(self._embed(items), self._stream.to_device(counts), slots, context)
            copy = self._stream.to_host(self._draw(scores, slots, plan, *self._slot_state(slots)).T)
        for row, part in zip(rows, items, strict=True):
            self._cached_items[row.slot] += part
        return copy

    @torch.inference_mode()
    def burst(self, rows: Sequence[DecodeRow], steps: int) -> PendingCopy:
        """Run ``steps`` decode steps: ids ``[steps, B]``. Pass each column to ``record_burst``."""
        with self._stream:
            missing = _next_power_of_two(len(rows)) - len(rows) if self._runner.fixed_shapes else 0
            slots, plans = self._plan_draws([*rows, *[DecodeRow(self._padding_slot, 0, 0, 0)] * missing], steps)
            longest = max(self.length(row.slot) for row in rows)
            drawn = []
            for step, plan in enumerate(plans):
                reach = steps if self._runner.fixed_shapes else step + 1
                context = self._context(longest + reach)
                key = ("decode", slots.shape[0], context)
                (ids,) = self._runner.run(key, self._decode_step(context), (slots, plan))
                drawn.append(ids.clone())
            return self._stream.to_host(torch.stack(drawn)[:, : len(rows), 0])

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
    def capture(self, batch: int) -> None:
        """Capture a decode step of every shape, in the padding slot.

        Args:
            batch: Most utterances in a step.
        """
        contexts = sorted({self._context(n) for n in range(1, self.max_tokens + 1)}, reverse=True)
        for rows in (1 << power for power in reversed(range(_next_power_of_two(batch).bit_length()))):
            for context in contexts:  # the largest first: the smaller ones reuse its memory
                with self._stream:
                    slots, plans = self._plan_draws([DecodeRow(self._padding_slot, 0, 0, 0)] * rows, 1)
                    self._runner.capture(("decode", rows, context), self._decode_step(context), (slots, plans[0]))

    def _plan_draws(self, rows: Sequence[DecodeRow], steps: int) -> tuple[Tensor, Sequence[Tensor]]:
        """Upload the plan of the next draws.

        Returns:
            The slots ``[B]``, and for each step ``[3, B, 1]``: the random key of the draw, the special id that may be
            drawn (or ``NOT_FORCED``, which matches no id), and the forced id (or ``NOT_FORCED``).
        """
        unforced = [NOT_FORCED] * steps
        sent = self._stream.to_device(
            [[row.slot, row.special, row.special_from, row.budget, *[*row.forced, *unforced][:steps]] for row in rows]
        )
        slots, special, special_from = sent[:, :3].T.contiguous()  # [B] each
        self._remaining[slots] = sent[:, 3:4]
        draws, keys = self._draws.ahead(slots, steps)  # [steps, B]
        special = torch.where(draws >= special_from, special, NOT_FORCED)
        return slots, torch.stack([keys, special, sent[:, 4:].T], dim=1)[..., None].unbind()

    def _context(self, longest: int) -> int:
        if self._runner.fixed_shapes:
            longest = -(-longest // CONTEXT_BUCKET) * CONTEXT_BUCKET
        return min(longest, self.max_tokens)

    def _decode_step(self, context: int) -> Callable[[Tensor, Tensor], tuple[Tensor]]:
        def step(slots: Tensor, plan: Tensor) -> tuple[Tensor]:
            remaining, new, recent = self._slot_state(slots)
            x = self._lm.embed_speech(recent[:, -1:].clamp(min=0))  # idle slots: any id
            scores = self._forward(x, new, slots, context)
            return (self._draw(scores, slots, plan, remaining, new, recent),)

        return step

    def _forward(self, x: Tensor, new: Tensor, slots: Tensor, context: int) -> Tensor:
        self.steps += 1
        self.positions += x.shape[0] * x.shape[1]
        scores: Tensor = self._lm(x, new, slots, self._pool, context)
        return scores

    def _slot_state(self, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the remaining draws ``[B, 1]``, 1 for active slots ``[B]``, and the last ids ``[B, window]``."""
        remaining = self._remaining[slots]
        return remaining, remaining.clamp(max=1).view(-1), self._draws.recent[slots]

    def _draw(
        self, scores: Tensor, slots: Tensor, plan: Tensor, remaining: Tensor, new: Tensor, recent: Tensor
    ) -> Tensor:
        """Draw one id per slot and update the slot state.

        Args:
            scores: ``[B, V]``, changed in place.
            slots: ``[B]``.
            plan: One step of ``_plan_draws``.
            remaining: Of ``_slot_state``, as are ``new`` and ``recent``.

        Returns:
            Ids ``[B, 1]``, ``IDLE`` or ``BROKEN``.
        """
        draws = self._draws
        speech = self._dims.speech_tokens
        is_active = remaining > 0
        key, special, forced = plan.unbind()
        scores[:, speech:].masked_fill_(self._special_ids != special, -torch.inf)
        is_valid = scores.amax(-1, keepdim=True) > -torch.inf
        ids = torch.where(forced >= 0, forced, pick(scores, key, recent, draws.rule))
        ids = torch.where(is_valid, ids, BROKEN)
        draws.recent[slots] = torch.where(is_active, torch.cat([recent[:, 1:], ids], dim=1), recent)
        draws.steps.index_add_(0, slots, new)
        self._remaining[slots] = torch.where((ids < speech) & is_valid & is_active, remaining - 1, 0)
        return torch.where(is_active, ids, IDLE)

    def _embed(self, rows: Sequence[Sequence[Item]]) -> Tensor:
        """Return input vectors ``[B, T, D]``, padded with zeros."""
        return torch.nn.utils.rnn.pad_sequence([self._embed_row(row) for row in rows], batch_first=True)

    def _embed_row(self, items: Sequence[Item]) -> Tensor:
        parts = []
        for kind, group in groupby(items, key=lambda item: item[0]):
            ids = [i for _, i in group]
            if kind in (Kind.SOS, Kind.TASK):
                row = self._dims.sos_row if kind is Kind.SOS else self._dims.task_row
                parts.append(self._lm.embed_special(row).expand(len(ids), -1))
            else:
                table = self._lm.embed_text if kind is Kind.TEXT else self._lm.embed_speech
                parts.append(table(self._stream.to_device(ids)))
        return torch.cat(parts)


def _common_prefix_length(a: Sequence[Item], b: Sequence[Item]) -> int:
    """Return the length of the common prefix."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))


def _next_power_of_two(rows: int) -> int:
    """Return the smallest power of two that is at least ``rows``."""
    return 1 << (rows - 1).bit_length()
