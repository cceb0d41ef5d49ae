"""Batches of language model passes: prefills and decode bursts. See stage.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from tts_worker.engine.cosyvoice.backends.streams import PendingCopy, TimingEvent
from tts_worker.engine.cosyvoice.chunks import Item
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.decoder import DecodeRow
from tts_worker.engine.cosyvoice.runs import InterleavedRun
from tts_worker.engine.cosyvoice.sequence import Utterance
from tts_worker.engine.cosyvoice.stage import StageFault, StageTimings, running_mean


@dataclass(frozen=True)
class _TokenBatch:
    """A pass in flight.

    Attributes:
        members: The utterances of the batch.
        ids: Drawn ids ``[steps, B]`` on their way to the host.
        is_prefill: Whether it is a prefill, otherwise a decode burst.
        steps: Number of decode steps.
        started_at_s: When it was submitted, by the host clock.
        start: Start of the pass on the device.
        end: End of the pass on the device.
    """

    members: tuple[Utterance, ...]
    ids: PendingCopy
    is_prefill: bool
    steps: int
    started_at_s: float
    start: TimingEvent
    end: TimingEvent


class TokenStage:
    """Submits one language model batch at a time and collects its ids."""

    def __init__(self, components: Components, burst_tokens: int, timings: StageTimings) -> None:
        self._decoder = components.decoder
        self._voice_cache = components.voice_cache
        self._burst = burst_tokens
        self._timings = timings
        self._stream = components.streams.tokens
        self._in_flight: _TokenBatch | None = None

    @property
    def is_busy(self) -> bool:
        return self._in_flight is not None

    @property
    def expected_at_s(self) -> float:
        """When the batch in flight is expected to finish, by the running mean."""
        if self._in_flight is None:
            return 0.0
        return self._in_flight.started_at_s + self._in_flight.steps * self._timings.token_s

    def submit_prefill(self, utterances: Sequence[Utterance]) -> None:
        """Feed the pending inputs of ``utterances`` and draw one id each.

        Raises:
            StageFault: The batch could not be submitted.
        """
        members: list[Utterance] = []
        started_at_s = perf_counter()
        start = self._stream.record_event()
        for utterance in utterances:
            try:
                is_ready = self._prepare(utterance)
            except Exception as error:
                raise StageFault([utterance], error) from error
            if is_ready:
                members.append(utterance)
        if not members:
            return
        try:
            for utterance in members:
                self._decoder.record_draws(utterance.slot, utterance.generator.take_fills())
            ids = self._decoder.prefill([self._row(u, 1) for u in members], [self._pending_items(u) for u in members])
        except Exception as error:
            raise StageFault(members, error, self._recover) from error
        end = self._stream.record_event()
        self._start(_TokenBatch(tuple(members), ids, True, 1, started_at_s, start, end))

    def _prepare(self, utterance: Utterance) -> bool:
        """Start the run if necessary. Returns False if there is nothing to feed."""
        generator = utterance.generator
        if generator.run is None:
            generator.begin_run()
        run = generator.run
        if run is None or run.waits_for_text:
            return False
        if not generator.run_started:
            prefix = None
            if generator.voice is not None and not isinstance(run, InterleavedRun):
                prefix = self._voice_cache.prefix(generator.voice, generator.request.prompt_text, self._decoder)
            run.pending_items = self._decoder.start(utterance.slot, generator.run_seed, run.pending_items, prefix)
            generator.run_started = True
        if self._decoder.free_positions(utterance.slot) < len(run.pending_items) + 1:
            generator.end_at_capacity()
            return False
        return True

    @staticmethod
    def _pending_items(utterance: Utterance) -> list[Item]:
        return utterance.generator.run.pending_items if utterance.generator.run is not None else []

    def _row(self, utterance: Utterance, steps: int) -> DecodeRow:
        run = utterance.generator.run
        assert run is not None
        budget = max(1, min(run.budget, self._decoder.free_positions(utterance.slot)))
        return DecodeRow(utterance.slot, run.special, run.special_from, budget, utterance.generator.forced_ids(steps))

    def submit_burst(self, utterances: Sequence[Utterance], steps: int) -> None:
        """Draw up to ``steps`` ids for each of ``utterances``.

        Raises:
            StageFault: The batch could not be submitted.
        """
        members = []
        for utterance in utterances:
            if self._decoder.free_positions(utterance.slot) < self._burst + 1:
                utterance.generator.end_at_capacity()
            else:
                members.append(utterance)
        if not members:
            return
        started_at_s = perf_counter()
        start = self._stream.record_event()
        try:
            ids = self._decoder.burst([self._row(u, steps) for u in members], steps)
        except Exception as error:
            raise StageFault(members, error, self._recover) from error
        end = self._stream.record_event()
        self._start(_TokenBatch(tuple(members), ids, False, steps, started_at_s, start, end))

    def _start(self, batch: _TokenBatch) -> None:
        for utterance in batch.members:
            utterance.is_decoding = True
        self._in_flight = batch

    def collect(self, *, block: bool) -> None:
        """Pass the ids of a finished batch to the utterances.

        Args:
            block: Whether to wait for the batch in flight.

        Raises:
            StageFault: The batch failed.
        """
        batch = self._in_flight
        if batch is None or not (block or batch.ids.ready):
            return
        self._in_flight = None
        for utterance in batch.members:
            utterance.is_decoding = False
        try:
            columns = batch.ids.wait().T.tolist()
            spent_s = batch.end.ms_since(batch.start) / 1000
        except Exception as error:
            for utterance in batch.members:
                if batch.is_prefill and utterance.generator.run is not None:
                    utterance.generator.run.pending_items = []  # the decoder has recorded them
            raise StageFault(batch.members, error, self._recover) from error
        drawn = 0
        for utterance, column in zip(batch.members, columns, strict=True):
            if utterance.cancelled:
                continue
            ids = column
            if not batch.is_prefill:
                ids = self._decoder.record_burst(utterance.slot, column, utterance.generator.last_id)
            utterance.lm_ms += 1000 * spent_s / len(batch.members)
            drawn = max(drawn, len(ids))
            self._timings.tokens += len(ids)
            utterance.generator.process_ids(ids)
        if batch.is_prefill:
            self._timings.prefill_ms += 1000 * spent_s
        else:
            self._timings.decode_ms += 1000 * spent_s
            self._timings.token_s = running_mean(self._timings.token_s, spent_s / max(1, drawn))

    def _recover(self, utterance: Utterance) -> None:
        """Feed the sequence of the slot again after a fault; the run continues with the next id."""
        generator = utterance.generator
        run = generator.run
        if run is not None and generator.run_started:
            restored = self._decoder.restore(utterance.slot, generator.run_seed, generator.drawn)
            run.pending_items = [*restored, *run.pending_items]
