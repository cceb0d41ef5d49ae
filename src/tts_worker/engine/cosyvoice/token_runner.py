"""Batches of language model passes: prefills and decode bursts. See stage.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

from tts_worker.engine.cosyvoice.backends.streams import PendingCopy, TimingEvent
from tts_worker.engine.cosyvoice.chunks import Item
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.decoder import DecodeRow
from tts_worker.engine.cosyvoice.runs import InterleavedRun
from tts_worker.engine.cosyvoice.sequence import NextOp, Utterance
from tts_worker.engine.cosyvoice.stage import StageFault, StageTimings, running_mean

_SMALL_PREFILL = 16  # inputs; longer prefills run alone


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

    def __init__(self, components: Components, batch: int, burst_tokens: int, timings: StageTimings) -> None:
        self._decoder = components.decoder
        self._voice_cache = components.voice_cache
        self._batch = batch
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

    def submit(self, urgent: Utterance, candidates: Iterable[Utterance]) -> None:
        """Submit a batch of ``urgent`` and of candidates that need the same operation.

        Raises:
            StageFault: The batch could not be submitted.
        """
        op = urgent.next_token_op()
        others = [] if urgent.retry_single else [u for u in candidates if u is not urgent and not u.retry_single]
        if op is NextOp.PREFILL:
            self._submit_prefill(urgent, others)
        else:
            members = [urgent, *(u for u in others if u.next_token_op() is NextOp.DECODE)][: self._batch]
            self._submit_burst(members)

    def _submit_prefill(self, urgent: Utterance, others: Sequence[Utterance]) -> None:
        members: list[Utterance] = []
        started_at_s = perf_counter()
        start = self._stream.record_event()
        # Only started runs may join: the prompt and context at the start of a run make a long prefill.
        joining = (u for u in others if u.generator.run_started and u.next_token_op() is NextOp.PREFILL)
        for utterance in (urgent, *joining):
            if len(members) == self._batch or (members and len(self._pending_items(members[0])) > _SMALL_PREFILL):
                break
            try:
                is_ready = self._prepare(utterance)
            except Exception as error:
                raise StageFault([utterance], error) from error
            if is_ready and (not members or len(self._pending_items(utterance)) <= _SMALL_PREFILL):
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

    def _submit_burst(self, members: Sequence[Utterance]) -> None:
        fitting = []
        for utterance in members:
            if self._decoder.free_positions(utterance.slot) < self._burst + 1:
                utterance.generator.end_at_capacity()
            else:
                fitting.append(utterance)
        if not fitting:
            return
        urgent = members[0]
        steps = self._burst
        if urgent.output.emitted_samples == 0 and urgent.generator.audio_segments:
            # No more steps than the first chunk needs, for the first-audio latency.
            steps = max(1, min(steps, urgent.generator.audio_segments[0].tokens_until_due))
        started_at_s = perf_counter()
        start = self._stream.record_event()
        try:
            ids = self._decoder.burst([self._row(u, steps) for u in fitting], steps)
        except Exception as error:
            raise StageFault(fitting, error, self._recover) from error
        end = self._stream.record_event()
        self._start(_TokenBatch(tuple(fitting), ids, False, steps, started_at_s, start, end))

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
