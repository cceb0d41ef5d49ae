"""Runs batches of language model passes: prefills and decode bursts, one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from torch import Tensor

from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.execution.streams import PendingCopy, TimingEvent
from tts_worker.engine.cosyvoice.faults import Fault, Stage, attempt
from tts_worker.engine.cosyvoice.phases import TokenPass
from tts_worker.engine.cosyvoice.sequence import CosyVoiceSequence
from tts_worker.engine.cosyvoice.timings import StageTimings
from tts_worker.engine.cosyvoice.tokens.decoder import DecodeRow
from tts_worker.engine.cosyvoice.tokens.runs import InterleavedRun, LmRun, RunPhase


@dataclass(frozen=True)
class DrawnIds:
    """Ids drawn for a sequence, and its share of the time."""

    sequence: CosyVoiceSequence
    ids: list[int]
    ms: float


@dataclass(frozen=True)
class SlotFull:
    """The slot of a sequence has no room for its next pass."""

    sequence: CosyVoiceSequence


TokenResult = DrawnIds | SlotFull | Fault


@dataclass(frozen=True)
class FirstTokens:
    """Ids of first chunks that are being drawn.

    Attributes:
        members: The sequences.
        ids: The ids ``[n, B]`` on the device.
        end: When they are drawn.
    """

    members: tuple[CosyVoiceSequence, ...]
    ids: Tensor
    end: TimingEvent


@dataclass(frozen=True)
class _LmPass:
    """A pass in flight.

    Attributes:
        members: The sequences of the batch.
        stage: ``PREFILL`` or ``DECODE``.
        steps: Ids to draw.
        ids: Drawn ids ``[steps, B]`` on their way to the host.
        start: Start of the pass on the device.
        prefilled: End of a prefill that decode steps follow.
        end: End of the pass on the device.
        started_at_s: When it was submitted, by the host clock.
    """

    members: tuple[CosyVoiceSequence, ...]
    stage: Stage
    steps: int
    ids: PendingCopy
    start: TimingEvent
    prefilled: TimingEvent | None
    end: TimingEvent
    started_at_s: float


class TokenRunner:
    """Submits one language model batch at a time and collects its ids.

    Args:
        components: Components of the engine.
        burst_steps: Most decode steps of a burst; a slot must have room for them.
        timings: Where device times are added.
    """

    def __init__(self, components: Components, burst_steps: int, timings: StageTimings) -> None:
        self._decoder = components.decoder
        self._voice_cache = components.voice_cache
        self._stream = components.streams.tokens
        self._burst_steps = burst_steps
        self._timings = timings
        self._pass: _LmPass | None = None
        self._results: list[TokenResult] = []

    @property
    def is_busy(self) -> bool:
        """Whether a pass is in flight, or results have not been collected."""
        return self._pass is not None or bool(self._results)

    @property
    def expected_at_s(self) -> float:
        """When the pass in flight is expected to finish, by the running mean."""
        if self._pass is None:
            return 0.0
        return self._pass.started_at_s + self._pass.steps * self._timings.token_s

    # -- submit -------------------------------------------------------------------------------------------------------

    def prefill(self, sequences: Iterable[CosyVoiceSequence]) -> None:
        """Feed the pending inputs of ``sequences`` and draw one id each."""
        self._submit(self._begin_all(sequences), Stage.PREFILL, 1)

    def draw_first_chunk(self, sequences: Iterable[CosyVoiceSequence], draws: int) -> FirstTokens | None:
        """Feed the pending inputs of ``sequences`` and draw all ids of their first chunks.

        Returns:
            The ids on the device. None if the text of a sequence is so short that its speech may end before: then one
            id each is drawn.
        """
        members = self._begin_all(sequences)
        if not all(self._will_speak(sequence, draws) for sequence in members):
            draws = 1
        ids = self._submit(members, Stage.PREFILL, draws)
        if ids is None or self._pass is None:
            return None
        for sequence in members:
            sequence.first_ids = ()
        return FirstTokens(self._pass.members, ids, self._pass.end)

    def _begin_all(self, sequences: Iterable[CosyVoiceSequence]) -> list[CosyVoiceSequence]:
        """Start the runs of ``sequences``. Returns those that have something to feed."""
        members = []
        for sequence in sequences:
            is_ready = attempt([sequence], Stage.PREFILL, partial(self._begin, sequence))
            if isinstance(is_ready, Fault):
                self._results.append(is_ready)
            elif is_ready:
                members.append(sequence)
        return members

    def burst(self, sequences: Iterable[CosyVoiceSequence], steps: int) -> None:
        """Draw up to ``steps`` ids for each of ``sequences``."""
        self._submit([s for s in sequences if self._has_room(s, self._burst_steps + 1)], Stage.DECODE, steps)

    def _will_speak(self, sequence: CosyVoiceSequence, draws: int) -> bool:
        """Whether the next ``draws`` ids are speech unless the model fails, and fit into the slot."""
        run = sequence.generator.run
        if run is None:
            return False
        has_room = self._decoder.free_positions(sequence.slot) >= len(run.pending_items) + draws
        return has_room and run.special_from >= draws and run.budget >= draws

    def _submit(self, members: list[CosyVoiceSequence], stage: Stage, steps: int) -> Tensor | None:
        """Start a pass. Returns the ids of a prefill with several draws on the device."""
        if not members:
            return None
        started_at_s = perf_counter()
        start = self._stream.record_event()
        drawn = attempt(members, stage, partial(self._draw, members, stage, steps))
        if isinstance(drawn, Fault):
            self._results.append(drawn)
            return None
        ids, copy, prefilled = drawn
        token_pass = TokenPass.IDS if ids is None else TokenPass.FIRST_CHUNK
        for sequence in members:
            sequence.enter_pass(token_pass)
        end = self._stream.record_event()
        self._pass = _LmPass(tuple(members), stage, steps, copy, start, prefilled, end, started_at_s)
        return ids

    def _draw(
        self, members: list[CosyVoiceSequence], stage: Stage, steps: int
    ) -> tuple[Tensor | None, PendingCopy, TimingEvent | None]:
        rows = [self._row(sequence, steps) for sequence in members]
        if stage is Stage.DECODE:
            return None, self._decoder.burst(rows, steps), None
        for sequence in members:
            self._decoder.record_draws(sequence.slot, _current_run(sequence).take_fills())
        items = [_current_run(sequence).pending_items for sequence in members]
        if steps == 1:
            return None, self._decoder.prefill(rows, items), None
        return self._decoder.prefill_and_burst(rows, items, steps)

    def _begin(self, sequence: CosyVoiceSequence) -> bool:
        """Start the run of ``sequence`` if necessary. Returns False if there is nothing to feed."""
        generator = sequence.generator
        if generator.run is None:
            generator.begin_run()
        run = generator.run
        if run is None or run.phase is RunPhase.WAITING_TEXT:
            return False
        if generator.run_in_slot is not run:
            request = generator.request
            prefix = None
            if generator.voice is not None and not isinstance(run, InterleavedRun):
                prefix = self._voice_cache.prefix(generator.voice, request, self._decoder)
            speaker = request.embedding if request.with_speaker else None
            items = self._decoder.start(sequence.slot, run.seed, run.pending_items, prefix, speaker)
            run.pending_items = items
            generator.run_in_slot = run
        return self._has_room(sequence, len(run.pending_items) + 1)

    def _has_room(self, sequence: CosyVoiceSequence, positions: int) -> bool:
        """Whether ``positions`` are free in the slot of ``sequence``; records ``SlotFull`` otherwise."""
        if self._decoder.free_positions(sequence.slot) >= positions:
            return True
        self._results.append(SlotFull(sequence))
        return False

    def _row(self, sequence: CosyVoiceSequence, steps: int) -> DecodeRow:
        run = _current_run(sequence)
        budget = max(1, min(run.budget, self._decoder.free_positions(sequence.slot)))
        return DecodeRow(sequence.slot, run.special, run.special_from, budget, run.forced_ids(steps))

    # -- collect ------------------------------------------------------------------------------------------------------

    def collect(self, *, block: bool = False) -> list[TokenResult]:
        """Return the results of the pass in flight if it has finished.

        Args:
            block: Whether to wait for it.
        """
        current = self._pass
        if current is not None and attempt(current.members, current.stage, lambda: block or current.ids.ready):
            self._pass = None
            self._finish(current)
        results = self._results
        self._results = []
        return results

    def _finish(self, finished: _LmPass) -> None:
        for sequence in finished.members:
            sequence.enter_pass(TokenPass.NONE)
        read = attempt(finished.members, finished.stage, partial(_read, finished))
        if isinstance(read, Fault):
            for sequence in finished.members:
                if finished.stage is Stage.PREFILL and sequence.generator.run is not None:
                    sequence.generator.run.pending_items = []  # the decoder has recorded them
            self._results.append(read)
            return
        columns, prefill_ms, decode_ms = read
        ms = prefill_ms + decode_ms
        drawn = 0
        for sequence, ids in zip(finished.members, columns, strict=True):
            if sequence.has_ended:
                continue
            if finished.stage is Stage.DECODE:
                ids = self._decoder.record_burst(sequence.slot, ids, _current_run(sequence).speech_ids[-1])
            elif finished.steps > 1:
                ids = [ids[0], *self._decoder.record_burst(sequence.slot, ids[1:], ids[0])]
                sequence.first_ids = tuple(ids)
            drawn = max(drawn, len(ids) - (finished.stage is Stage.PREFILL))
            self._timings.tokens += len(ids)
            self._results.append(DrawnIds(sequence, ids, ms / len(finished.members)))
        if finished.stage is Stage.PREFILL:
            self._timings.add_prefill(prefill_ms)
        if finished.steps > 1 or finished.stage is Stage.DECODE:
            self._timings.add_burst(decode_ms, drawn)

    def recover(self, sequence: CosyVoiceSequence) -> None:
        """Feed the slot of ``sequence`` again after a fault; its run continues with the next id."""
        generator = sequence.generator
        run = generator.run
        if run is not None and generator.run_in_slot is run:
            restored = self._decoder.restore(sequence.slot, run.seed, run.drawn)
            run.pending_items = [*restored, *run.pending_items]


def _current_run(sequence: CosyVoiceSequence) -> LmRun:
    """Return the run of a member of a pass, which ends only with what the pass draws."""
    assert sequence.generator.run is not None
    return sequence.generator.run


def _read(finished: _LmPass) -> tuple[list[list[int]], float, float]:
    """Return the ids of each member, and the device time of the prefill and of the decode steps in milliseconds."""
    columns = finished.ids.wait().T.tolist()
    if finished.prefilled is not None:
        return columns, finished.prefilled.ms_since(finished.start), finished.end.ms_since(finished.prefilled)
    ms = finished.end.ms_since(finished.start)
    return (columns, ms, 0.0) if finished.stage is Stage.PREFILL else (columns, 0.0, ms)
