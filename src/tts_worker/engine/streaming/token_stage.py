"""Speech tokens, of many utterances at once: feeds and bursts of the language model. See stage.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

from tts_worker.engine.cosyvoice.chunks import Item
from tts_worker.engine.streaming.decode import Row
from tts_worker.engine.streaming.lanes import Mark, Ticket
from tts_worker.engine.streaming.parts import Parts
from tts_worker.engine.streaming.runs import InterleavedRun
from tts_worker.engine.streaming.stage import Spent, StageFault, running_mean
from tts_worker.engine.streaming.utterance import Need, Utterance

_SMALL_FEED = 16  # inputs: so short ones share a pass, longer ones go by themselves


@dataclass(frozen=True)
class _Tokens:
    members: tuple[Utterance, ...]
    ticket: Ticket
    fed: bool  # a feed, not a burst
    steps: int
    began_s: float
    marks: tuple[Mark, Mark]  # of the device: begun, done


class TokenStage:
    """Feeds and bursts of the language model."""

    def __init__(self, parts: Parts, batch: int, burst_tokens: int, spent: Spent) -> None:
        self._decoder = parts.decoder
        self._book = parts.book
        self._batch = batch
        self._burst = burst_tokens
        self._spent = spent
        self._lane = parts.lanes.tokens
        self._flight: _Tokens | None = None

    @property
    def busy(self) -> bool:
        return self._flight is not None

    @property
    def expected_s(self) -> float:
        """When what is in flight will have landed, by what it took until now."""
        return 0.0 if self._flight is None else self._flight.began_s + self._flight.steps * self._spent.token_s

    def launch(self, urgent: Utterance, others: Iterable[Utterance]) -> None:
        """One pass for ``urgent`` and whoever of ``others`` waits for the same. Raises StageFault."""
        kind = urgent.token_need()
        company = [] if urgent.alone else [u for u in others if u is not urgent and not u.alone]
        if kind is Need.FEED:
            self._launch_feed(urgent, company)
        else:
            members = [urgent, *(u for u in company if u.token_need() is Need.DECODE)][: self._batch]
            self._launch_burst(members)

    def _launch_feed(self, urgent: Utterance, company: Sequence[Utterance]) -> None:
        members: list[Utterance] = []
        began_s = perf_counter()
        begun = self._lane.mark()
        for utterance in (urgent, *company):
            if len(members) == self._batch or (members and len(self._pending(members[0])) > _SMALL_FEED):
                break
            if utterance is not urgent and (not utterance.talk.started_run or utterance.token_need() is not Need.FEED):
                continue  # only who goes on: a run's beginning is long
            try:
                ready = self._prepare(utterance)
            except Exception as problem:
                raise StageFault([utterance], problem) from problem
            if ready and (not members or len(self._pending(utterance)) <= _SMALL_FEED):
                members.append(utterance)
        if not members:
            return
        try:
            for utterance in members:
                self._decoder.record(utterance.slot, utterance.talk.record_fills())
            ticket = self._decoder.feed([self._row(u, 1) for u in members], [self._pending(u) for u in members])
        except Exception as problem:
            raise StageFault(members, problem, self._recover) from problem
        self._fly(_Tokens(tuple(members), ticket, True, 1, began_s, (begun, self._lane.mark())))

    def _prepare(self, utterance: Utterance) -> bool:
        """Bring the run to where something can be fed. False if it turns out that nothing can."""
        if utterance.talk.run is None:
            utterance.talk.begin_run()
        run = utterance.talk.run
        if run is None or run.waits_for_text:
            return False
        if not utterance.talk.started_run:
            voice = utterance.talk.voice
            prefix = None
            if voice is not None and not isinstance(run, InterleavedRun):
                prefix = self._book.prefix(voice, utterance.talk.request.prompt_text, self._decoder)
            run.unfed = self._decoder.start(utterance.slot, utterance.talk.run_seed, run.unfed, prefix)
            utterance.talk.started_run = True
        if self._decoder.room(utterance.slot) < len(run.unfed) + 1:
            utterance.talk.out_of_room()
            return False
        return True

    @staticmethod
    def _pending(utterance: Utterance) -> list[Item]:
        return utterance.talk.run.unfed if utterance.talk.run is not None else []

    def _row(self, utterance: Utterance, steps: int) -> Row:
        run = utterance.talk.run
        assert run is not None
        budget = min(run.budget, self._decoder.room(utterance.slot))
        return Row(utterance.slot, run.special, run.special_from, max(1, budget), utterance.talk.forced(steps))

    def _launch_burst(self, members: Sequence[Utterance]) -> None:
        fitting = []
        for utterance in members:
            if self._decoder.room(utterance.slot) < self._burst + 1:
                utterance.talk.out_of_room()
            else:
                fitting.append(utterance)
        if not fitting:
            return
        first = members[0]
        steps = self._burst
        if first.output.emitted_samples == 0 and first.talk.passages:
            steps = max(1, min(steps, first.talk.passages[0].missing_tokens))  # not one more before the first sound
        began_s = perf_counter()
        begun = self._lane.mark()
        try:
            ticket = self._decoder.burst([self._row(u, steps) for u in fitting], steps)
        except Exception as problem:
            raise StageFault(fitting, problem, self._recover) from problem
        self._fly(_Tokens(tuple(fitting), ticket, False, steps, began_s, (begun, self._lane.mark())))

    def _fly(self, flight: _Tokens) -> None:
        for utterance in flight.members:
            utterance.decoding = True
        self._flight = flight

    def land(self, *, block: bool) -> None:
        """Hand over what has arrived. Raises StageFault."""
        flight = self._flight
        if flight is None or not (block or flight.ticket.ready):
            return
        self._flight = None
        for utterance in flight.members:
            utterance.decoding = False
        try:
            columns = flight.ticket.wait().T.tolist()
            spent_s = flight.marks[1].ms_since(flight.marks[0]) / 1000
        except Exception as problem:
            for utterance in flight.members:
                if flight.fed and utterance.talk.run is not None:
                    utterance.talk.run.unfed = []  # the decoder's book has it
            raise StageFault(flight.members, problem, self._recover) from problem
        drawn = 0
        for utterance, column in zip(flight.members, columns, strict=True):
            if utterance.gone:
                continue
            ids = column if flight.fed else self._decoder.fed(utterance.slot, column, utterance.talk.last_id)
            utterance.lm_ms += 1000 * spent_s / len(flight.members)
            drawn = max(drawn, len(ids))
            self._spent.tokens += len(ids)
            utterance.talk.take(ids)
        if flight.fed:
            self._spent.feed_ms += 1000 * spent_s
        else:
            self._spent.decode_ms += 1000 * spent_s
            self._spent.token_s = running_mean(self._spent.token_s, spent_s / max(1, drawn))

    def _recover(self, utterance: Utterance) -> None:
        """After a fault: what the slot held must be fed again, then the run goes on with the next id."""
        run = utterance.talk.run
        if run is not None and utterance.talk.started_run:
            run.unfed = [
                *self._decoder.restore(utterance.slot, utterance.talk.run_seed, utterance.talk.drawn),
                *run.unfed,
            ]
