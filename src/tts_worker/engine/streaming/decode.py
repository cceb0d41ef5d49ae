"""Speech tokens for many utterances at once: slots of the language model, prefill, and bursts of decode steps.

Owns the slots and what the device remembers of each: the last id, what may come next, how many draws are left. A burst
draws several ids in a row without the host: a slot stands still by itself as soon as a special id comes or its budget
is used. It must not know why a special id may come, who owns a slot or what happens to the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.chunks import Item, Kind
from tts_worker.engine.cosyvoice.kv import SlotPool
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.sample import DrawState, draw
from tts_worker.engine.streaming.graphs import Runner
from tts_worker.engine.streaming.lanes import Lane, Ticket

IDLE, BROKEN = -2, -1  # in place of an id: the slot stood still; the scores were no numbers
NOT_FORCED = -1
CONTEXT_BUCKET = 256


@dataclass(frozen=True, slots=True)
class Row:
    """What a slot may do before the host is asked again. ``forced``: ids to say instead of the drawn ones."""

    slot: int
    special: int
    special_from: int
    budget: int
    forced: Sequence[int] = ()


@dataclass(frozen=True)
class Prefix:
    """The beginning of a sequence and its keys and values ``[layers, 2, heads, len(items), dim]``. Read-only."""

    items: tuple[Item, ...]
    kv: Tensor


class Decoder:
    """Memory and steps of the language model for ``slots`` utterances."""

    def __init__(
        self, networks: Networks, *, slots: int, max_tokens: int, lane: Lane, runner: Runner, checked: bool = False
    ) -> None:
        dims, weight = networks.config.lm, networks.lm.llm_decoder.weight
        self._lm, self._dims, self._lane, self._runner = networks.lm, dims, lane, runner
        self.max_tokens = max_tokens
        device = weight.device
        count = slots + 2  # one to pad batches with, one to prepare prefixes in
        self._spare, self._workshop = slots, slots + 1
        self._pool = SlotPool(
            dims.layers, count, dims.kv_heads, max_tokens, dims.head_dim,
            dtype=weight.dtype, device=device, checked=checked,
        )  # fmt: skip
        self._draws = DrawState(count, networks.config.sampling, device)
        self._last, self._alive = (
            torch.zeros(count, dtype=torch.long, device=device),
            torch.zeros(count, dtype=torch.bool, device=device),
        )
        self._rules = torch.zeros(count, 3, dtype=torch.long, device=device)  # special id, from which draw on, budget
        self._ids = torch.arange(dims.speech_rows, device=device)[None]  # [1, V]
        self._free = list(range(slots))[::-1]
        self._fed: list[list[Item]] = [[] for _ in range(count)]  # what each slot holds
        self.steps = 0  # forward passes, for the benchmark
        self.positions = 0  # vectors that went through them

    # -- slots --------------------------------------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def acquire(self) -> int:
        """A slot that holds nothing. The caller made sure that there is one."""
        slot = self._free.pop()
        with self._lane:
            self._pool.reset(self._lane.send([slot]))
        self._fed[slot] = []
        return slot

    def release(self, slot: int) -> None:
        self._free.append(slot)
        self._fed[slot] = []

    def length(self, slot: int) -> int:
        return len(self._fed[slot])

    def room(self, slot: int) -> int:
        """How many more inputs fit."""
        return self.max_tokens - len(self._fed[slot])

    # -- prefixes and starts ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prefix(self, items: Sequence[Item]) -> Prefix:
        """Compute the keys and values of ``items`` once, for everybody who begins with them."""
        slot = self._workshop
        with self._lane:
            at = self._lane.send([slot])
            self._pool.reset(at)
            self._forward(self._embed([items]), self._lane.send([len(items)]), at, len(items))
            kv = self._pool.data[:, :, slot, :, : len(items)].clone()
        return Prefix(tuple(items), kv)

    @torch.inference_mode()
    def start(self, slot: int, seed: int, items: Sequence[Item], prefix: Prefix | None = None) -> list[Item]:
        """Begin a sequence in ``slot`` with draws of ``seed``. What the slot (or ``prefix``) holds of ``items`` already
        stays; returns the items that must be fed."""
        same = _common(self._fed[slot], items)
        with self._lane:
            at = self._lane.send([slot])
            if prefix is not None and len(prefix.items) > same and _common(prefix.items, items) == len(prefix.items):
                same = len(prefix.items)
                self._pool.data[:, :, slot, :, :same] = prefix.kv
            same = min(same, len(items) - 1)  # the scores after the last one are wanted
            self._pool.lengths[at] = same
            self._draws.start(at, self._lane.send([seed]))
        self._fed[slot] = list(items[:same])
        return list(items[same:])

    @torch.inference_mode()
    def restore(self, slot: int, seed: int, drawn: Sequence[int]) -> list[Item]:
        """A pass failed half-way and ``slot`` is not to be trusted: begin its sequence again, as if ``drawn`` had just
        been drawn. Returns what it held, which must be fed."""
        items = list(self._fed[slot])
        self._fed[slot] = []
        with self._lane:
            self._pool.reset(self._lane.send([slot]))
            self._draws.start(self._lane.send([slot]), self._lane.send([seed]))
        self.record(slot, drawn)
        return items

    @torch.inference_mode()
    def record(self, slot: int, ids: Sequence[int]) -> None:
        """``ids`` count as drawn."""
        with self._lane:
            for token in ids:
                self._draws.record(self._lane.send([slot]), self._lane.send([token]))

    # -- steps --------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def feed(self, rows: Sequence[Row], items: Sequence[Sequence[Item]]) -> Ticket:
        """Feed each slot its ``items`` and draw one id each: ``[1, B]``. Batches of different lengths are padded."""
        counts = [len(part) for part in items]
        with self._lane:
            slots = self._begin(rows)
            context = self._context(max(self.length(row.slot) + n for row, n in zip(rows, counts, strict=True)))
            scores = self._forward(self._embed(items), self._lane.send(counts), slots, context)
            ids = self._draw(scores, slots, self._forced(rows, 1)[0])
            ticket = self._lane.fetch(ids[None])
        for row, part in zip(rows, items, strict=True):
            self._fed[row.slot] += part
        return ticket

    @torch.inference_mode()
    def burst(self, rows: Sequence[Row], steps: int) -> Ticket:
        """Draw up to ``steps`` ids of each slot, each after feeding the one before: ``[steps, B]``. The ids tell, by
        ``fed``, how far each slot got."""
        with self._lane:
            slots = self._begin(rows)
            forced = self._forced(rows, steps)
            if self._runner.fixed_shapes:
                missing = _bucket(len(rows)) - len(rows)
                slots = torch.cat([slots, slots.new_full([missing], self._spare)])
                forced = torch.cat([forced, forced.new_full([steps, missing], NOT_FORCED)], dim=1)
                self._alive[self._spare] = False
            longest = max(self.length(row.slot) for row in rows)
            drawn = []
            for step in range(steps):
                reach = steps if self._runner.fixed_shapes else step + 1
                context = self._context(longest + reach)
                key = ("decode", slots.shape[0], context)
                (ids,) = self._runner.run(key, self._stepper(context), (slots, forced[step]))
                drawn.append(ids[: len(rows)].clone())
            return self._lane.fetch(torch.stack(drawn))

    def fed(self, slot: int, ids: Sequence[int], last: int) -> list[int]:
        """After a burst: the ids that were drawn for ``slot``, of its column ``ids``; ``last`` was drawn before."""
        drawn = [token for token in ids if token != IDLE]
        for token in [last, *drawn][: len(drawn)]:
            self._fed[slot].append((Kind.SPEECH, token))
        return drawn

    @torch.inference_mode()
    def record_bursts(self, batch: int) -> None:
        """Run a decode step of every shape once, in a slot that nobody has."""
        for rows in (1 << power for power in range(_bucket(batch).bit_length())):
            for context in sorted({self._context(n) for n in range(1, self.max_tokens, CONTEXT_BUCKET)}):
                with self._lane:
                    slots = self._lane.send([self._spare] * rows)
                    forced = self._lane.send([NOT_FORCED] * rows)
                    self._alive[slots] = False
                    self._runner.run(("decode", rows, context), self._stepper(context), (slots, forced))

    def _begin(self, rows: Sequence[Row]) -> Tensor:
        plan = self._lane.send([[row.slot, row.special, row.special_from, row.budget] for row in rows])
        slots = plan[:, 0].contiguous()
        self._rules[slots] = plan[:, 1:]
        self._alive[slots] = True
        return slots

    def _forced(self, rows: Sequence[Row], steps: int) -> Tensor:
        table = [[row.forced[step] if step < len(row.forced) else NOT_FORCED for row in rows] for step in range(steps)]
        return self._lane.send(table)

    def _context(self, longest: int) -> int:
        if self._runner.fixed_shapes:
            longest = -(-longest // CONTEXT_BUCKET) * CONTEXT_BUCKET
        return min(longest, self.max_tokens)

    def _stepper(self, context: int) -> Callable[[Tensor, Tensor], tuple[Tensor]]:
        def step(slots: Tensor, forced: Tensor) -> tuple[Tensor]:
            alive = self._alive[slots]
            x = self._lm.embed_speech(self._last[slots])[:, None]
            return (self._draw(self._forward(x, alive.long(), slots, context), slots, forced),)

        return step

    def _forward(self, x: Tensor, new: Tensor, slots: Tensor, context: int) -> Tensor:
        self.steps += 1
        self.positions += x.shape[0] * x.shape[1]
        scores: Tensor = self._lm(x, new, slots, self._pool, context)
        return scores

    def _draw(self, scores: Tensor, slots: Tensor, forced: Tensor) -> Tensor:
        """Draw, remember, and stop the slots that must stop. ``[B]`` ids, ``IDLE`` or ``BROKEN``."""
        draws, alive, speech = self._draws, self._alive[slots], self._dims.speech_tokens
        special, special_from, budget = self._rules[slots].unbind(1)
        may_come = draws.steps[slots] >= special_from
        allowed = (self._ids < speech) | ((self._ids == special[:, None]) & may_come[:, None])
        ids = draw(scores, allowed, draws, slots)
        ids = torch.where(forced >= 0, forced, ids)
        ids = torch.where(scores.amax(-1).isfinite(), ids, BROKEN)
        place = draws.steps[slots] % draws.rule.window
        draws.recent[slots, place] = torch.where(alive, ids, draws.recent[slots, place])
        draws.steps[slots] += alive.long()
        self._rules[slots, 2] = budget - alive.long()
        self._last[slots] = torch.where(alive, ids.clamp(min=0), self._last[slots])
        self._alive[slots] = alive & (ids >= 0) & (ids < speech) & (budget > 1)
        return torch.where(alive, ids, IDLE)

    def _embed(self, rows: Sequence[Sequence[Item]]) -> Tensor:
        """Inputs to vectors ``[B, T, D]``, padded with zeros."""
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
                parts.append(table(self._lane.send(ids)))
        return torch.cat(parts)


def _common(a: Sequence[Item], b: Sequence[Item]) -> int:
    """How many items two sequences begin with alike."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))


def _bucket(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()
