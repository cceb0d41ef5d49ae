"""Speech tokens for many utterances at once: slots of the language model, prefill, and bursts of decode steps.

Owns the slots and what the device remembers of each: the last ids and how many draws are left. A burst draws several
ids in a row without the host: a slot stands still by itself as soon as a special id comes or its budget is used. It
must not know why a special id may come, who owns a slot or what happens to the ids.
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
from tts_worker.engine.cosyvoice.sample import DrawState, pick
from tts_worker.engine.streaming.graphs import Runner
from tts_worker.engine.streaming.lanes import Lane, Ticket

# in place of an id: the slot stood still; the scores were no numbers
IDLE = -2
BROKEN = -1
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
        dims = networks.config.lm
        weight = networks.lm.llm_decoder.weight
        self._lm = networks.lm
        self._dims = dims
        self._lane = lane
        self._runner = runner
        self.max_tokens = max_tokens
        device = weight.device
        count = slots + 2  # one to pad batches with, one to prepare prefixes in
        self._spare = slots
        self._workshop = slots + 1
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
        self._left = torch.zeros(count, 1, dtype=torch.long, device=device)  # draws; a slot without stands still
        self._special_ids = torch.arange(dims.speech_tokens, dims.speech_rows, device=device)
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
            slots, (plan,) = self._begin(rows, 1)
            context = self._context(max(self.length(row.slot) + n for row, n in zip(rows, counts, strict=True)))
            scores = self._forward(self._embed(items), self._lane.send(counts), slots, context)
            ticket = self._lane.fetch(self._draw(scores, slots, plan, *self._standing(slots)).T)
        for row, part in zip(rows, items, strict=True):
            self._fed[row.slot] += part
        return ticket

    @torch.inference_mode()
    def burst(self, rows: Sequence[Row], steps: int) -> Ticket:
        """Draw up to ``steps`` ids of each slot, each after feeding the one before: ``[steps, B]``. The ids tell, by
        ``fed``, how far each slot got."""
        with self._lane:
            missing = _bucket(len(rows)) - len(rows) if self._runner.fixed_shapes else 0
            slots, plans = self._begin([*rows, *[Row(self._spare, 0, 0, 0)] * missing], steps)
            longest = max(self.length(row.slot) for row in rows)
            drawn = []
            for step, plan in enumerate(plans):
                reach = steps if self._runner.fixed_shapes else step + 1
                context = self._context(longest + reach)
                key = ("decode", slots.shape[0], context)
                (ids,) = self._runner.run(key, self._stepper(context), (slots, plan))
                drawn.append(ids.clone())
            return self._lane.fetch(torch.stack(drawn)[:, : len(rows), 0])

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
                    slots, plans = self._begin([Row(self._spare, 0, 0, 0)] * rows, 1)
                    self._runner.run(("decode", rows, context), self._stepper(context), (slots, plans[0]))

    def _begin(self, rows: Sequence[Row], steps: int) -> tuple[Tensor, Sequence[Tensor]]:
        """The slots ``[B]``, and for each step what ``_draw`` must know of it that no draw before it changes,
        ``[3, B, 1]``: the key of the draw, the special id that may come (or ``NOT_FORCED``, which none is) and the id
        that is forced."""
        unforced = [NOT_FORCED] * steps
        sent = self._lane.send(
            [[row.slot, row.special, row.special_from, row.budget, *[*row.forced, *unforced][:steps]] for row in rows]
        )
        slots, special, special_from = sent[:, :3].T.contiguous()  # [B] each
        self._left[slots] = sent[:, 3:4]
        draws, keys = self._draws.ahead(slots, steps)  # [steps, B]
        special = torch.where(draws >= special_from, special, NOT_FORCED)
        return slots, torch.stack([keys, special, sent[:, 4:].T], dim=1)[..., None].unbind()

    def _context(self, longest: int) -> int:
        if self._runner.fixed_shapes:
            longest = -(-longest // CONTEXT_BUCKET) * CONTEXT_BUCKET
        return min(longest, self.max_tokens)

    def _stepper(self, context: int) -> Callable[[Tensor, Tensor], tuple[Tensor]]:
        def step(slots: Tensor, plan: Tensor) -> tuple[Tensor]:
            left, new, recent = self._standing(slots)
            x = self._lm.embed_speech(recent[:, -1:].clamp(min=0))  # of a slot that stands still: anything
            scores = self._forward(x, new, slots, context)
            return (self._draw(scores, slots, plan, left, new, recent),)

        return step

    def _forward(self, x: Tensor, new: Tensor, slots: Tensor, context: int) -> Tensor:
        self.steps += 1
        self.positions += x.shape[0] * x.shape[1]
        scores: Tensor = self._lm(x, new, slots, self._pool, context)
        return scores

    def _standing(self, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draws that are left ``[B, 1]``, whether one is made ``[B]``: 1 or 0, the last ids ``[B, window]``."""
        left = self._left[slots]
        return left, left.clamp(max=1).view(-1), self._draws.recent[slots]

    def _draw(self, scores: Tensor, slots: Tensor, plan: Tensor, left: Tensor, new: Tensor, recent: Tensor) -> Tensor:
        """Draw, remember, and stop the slots that must stop. ``scores [B, V]`` are changed; ``plan`` is of ``_begin``,
        ``left, new, recent`` of ``_standing``. ``[B, 1]`` ids, ``IDLE`` or ``BROKEN``."""
        draws = self._draws
        speech = self._dims.speech_tokens
        alive = left > 0
        key, special, forced = plan.unbind()
        scores[:, speech:].masked_fill_(self._special_ids != special, -torch.inf)
        good = scores.amax(-1, keepdim=True) > -torch.inf
        ids = torch.where(forced >= 0, forced, pick(scores, key, recent, draws.rule))
        ids = torch.where(good, ids, BROKEN)
        draws.recent[slots] = torch.where(alive, torch.cat([recent[:, 1:], ids], dim=1), recent)
        draws.steps.index_add_(0, slots, new)
        self._left[slots] = torch.where((ids < speech) & good & alive, left - 1, 0)
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
