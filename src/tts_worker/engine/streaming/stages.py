"""The two kinds of work on the device: tokens and sound. Each launches one pass at a time and lands what came of it.

A stage chooses who shares a pass with the most urgent utterance, keeps the book of what is in flight, and hands results
to the utterances. Faults leave a stage as ``StageFault`` with the members it concerns; what they cost is the engine's
decision. It must not know credit, clocks or commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from tts_worker.audio.pcm import fade_out, to_float, to_pcm
from tts_worker.engine.cosyvoice.chunks import Item
from tts_worker.engine.streaming.decode import Row
from tts_worker.engine.streaming.lanes import Begun, Mark, Ticket
from tts_worker.engine.streaming.parts import Parts
from tts_worker.engine.streaming.passage import Passage
from tts_worker.engine.streaming.render import Mels, SoundStream, Voiced, Work
from tts_worker.engine.streaming.runs import InterleavedRun
from tts_worker.engine.streaming.utterance import Need, Utterance
from tts_worker.errors import OutOfMemory

_SMALL_FEED = 16  # inputs: so short ones share a pass, longer ones go by themselves
_END_FADE_SAMPLES = 480  # 20 ms, where speech was cut


class StageFault(Exception):
    """A pass failed; ``members`` took part in it."""

    def __init__(self, members: Sequence[Utterance], cause: BaseException) -> None:
        super().__init__(type(cause).__name__)
        self.members, self.cause = list(members), cause


@dataclass
class Spent:
    """Running totals, and what a unit of work takes at present (a running mean): for the benchmark and for deciding
    how much sound a first chunk should hold."""

    feed_ms: float = 0.0
    decode_ms: float = 0.0
    flow_ms: float = 0.0
    vocoder_ms: float = 0.0
    tokens: int = 0
    token_s: float = 0.0
    chunk_s: float = 0.0

    def reset(self) -> None:
        """Begin to count again."""
        self.feed_ms = self.decode_ms = self.flow_ms = self.vocoder_ms = self.token_s = self.chunk_s = 0.0
        self.tokens = 0


def _mean(before: float, value: float) -> float:
    """A running mean."""
    return value if before == 0.0 else 0.9 * before + 0.1 * value


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
        self._decoder, self._book, self._batch, self._burst = parts.decoder, parts.book, batch, burst_tokens
        self._spent, self._lane = spent, parts.lanes.tokens
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
        began_s, begun = perf_counter(), self._lane.mark()
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
            raise StageFault(members, problem) from problem
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
        if first.outlet.emitted_samples == 0 and first.talk.passages:
            steps = max(1, min(steps, first.talk.passages[0].missing_tokens))  # not one more before the first sound
        began_s, begun = perf_counter(), self._lane.mark()
        try:
            ticket = self._decoder.burst([self._row(u, steps) for u in fitting], steps)
        except Exception as problem:
            raise StageFault(fitting, problem) from problem
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
            raise StageFault(flight.members, problem) from problem
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
            self._spent.token_s = _mean(self._spent.token_s, spent_s / max(1, drawn))

    def recover(self, utterance: Utterance) -> None:
        """After a fault: what the slot held must be fed again, then the run goes on with the next id."""
        run = utterance.talk.run
        if run is not None and utterance.talk.started_run:
            run.unfed = [
                *self._decoder.restore(utterance.slot, utterance.talk.run_seed, utterance.talk.drawn),
                *run.unfed,
            ]


@dataclass(frozen=True)
class _Sound:
    utterance: Utterance
    passage: Passage
    work: Work


_Sounds = tuple[_Sound, ...]


class SoundStage:
    """Chunks of tokens to sound: through the flow, then through the vocoder. Where the flow has a lane to itself, it is
    at the next chunk while the vocoder is at this one."""

    def __init__(self, parts: Parts, batch: int, spent: Spent, freed: Callable[[], None]) -> None:
        self._renderer, self._pool, self._book, self._batch = parts.renderer, parts.pool, parts.book, batch
        self._spent, self._freed = spent, freed
        self._one_lane = parts.lanes.flow is parts.lanes.vocoder
        self._flow: tuple[_Sounds, Begun[Mels]] | None = None
        self._between: deque[tuple[_Sounds, Mels]] = deque()
        self._vocoder: tuple[_Sounds, Mels, Voiced] | None = None
        self._left: list[SoundStream] = []  # whose listeners went while the flow was at them
        self._began_s = 0.0

    @property
    def busy(self) -> bool:
        return self._flow is not None or self._vocoder is not None or bool(self._between)

    @property
    def has_room(self) -> bool:
        """Whether ``launch`` may be called."""
        return not self.busy if self._one_lane else self._flow is None

    @property
    def has_frames(self) -> bool:
        """Whether ``vocode`` must be called."""
        return bool(self._between) and self._vocoder is None

    @property
    def expected_s(self) -> float:
        """When what is in flight will have landed, by what it took until now."""
        return self._began_s + self._spent.chunk_s

    def launch(self, wanting: Sequence[Utterance], everyone: Sequence[Utterance]) -> bool:
        """Render the due chunks of the first of ``wanting``, the most urgent first. False if there is no memory for
        any of them now. Raises StageFault, and OutOfMemory if there never will be."""
        self._began_s = perf_counter()
        members: list[Utterance] = []
        works: list[Work] = []
        pages = 0
        for utterance in wanting:
            passage = utterance.talk.due
            if passage is None or passage.due is None:
                continue
            work = Work(passage.stream, passage.due, tuple(passage.tokens[: passage.due.known]))
            try:
                fits = self._fits(utterance, work, everyone, pages)
            except OutOfMemory as problem:
                if members:
                    break  # next time it is the first
                raise StageFault([utterance], problem) from problem
            if fits:
                members.append(utterance)
                works.append(work)
                pages += self._renderer.pages(work)
            if len(members) == self._batch or (members and members[0].alone):
                break
        if not members:
            return False
        sounds = tuple(_Sound(u, u.talk.passages[0], work) for u, work in zip(members, works, strict=True))
        for utterance in members:
            utterance.rendering = True
        self._flow = sounds, self._renderer.flow(works)
        if self._one_lane:  # what the vocoder does comes after it, in the order of the lane
            self._land_flow()
            self.vocode()
        return True

    def _fits(self, utterance: Utterance, work: Work, everyone: Sequence[Utterance], taken: int) -> bool:
        """Whether there are pages for ``work``. What has begun may take what there is; what begins waits until there is
        enough for all of it, so that it need not end half-way. Raises OutOfMemory where nobody will ever free any."""
        pool, needed = self._pool, self._renderer.pages(work) + taken
        begins = work.stream.flow is None
        others = [
            u for u in everyone if u is not utterance and u.talk.passages and u.talk.passages[0].stream.flow is not None
        ]
        wanted = needed
        if begins:
            wanted += self._expected_pages(utterance) + sum(map(self._expected_pages, others))
        while pool.free_pages < wanted and self._book.shrink(pool):
            pass
        if pool.free_pages >= (wanted if others else needed):
            return True
        if begins and others:
            utterance.blocked = True
            return False
        raise OutOfMemory("there is no memory for more sound: end an utterance, or set more pages")

    def _expected_pages(self, utterance: Utterance) -> int:
        """Pages that the passage being spoken will still take, as far as its text tells."""
        passage = utterance.talk.passages[0]
        tokens = max(passage.clock.expected_tokens, len(passage.tokens)) - passage.rendered_tokens
        return max(0, int(tokens) // self._pool.chunk_tokens)

    def _land_flow(self) -> None:
        assert self._flow is not None
        (sounds, begun), self._flow = self._flow, None
        try:
            mels = begun.result()
        except Exception as problem:
            for sound in sounds:
                sound.utterance.rendering = False
            raise StageFault([sound.utterance for sound in sounds], problem) from problem
        finally:
            while self._left:
                self._renderer.close(self._left.pop())
        self._between.append((sounds, mels))
        if not self._one_lane:  # the next chunk may begin
            for sound in sounds:
                sound.utterance.rendering = False
                sound.passage.done(sound.work.chunk)
            for sound, mel in zip(sounds, mels.frames, strict=True):
                sound.utterance.coming_samples = self._renderer.samples(mel)

    def vocode(self) -> None:
        """Give the vocoder what the flow made. Raises StageFault."""
        sounds, mels = self._between.popleft()
        there = [(sound, mel) for sound, mel in zip(sounds, mels.frames, strict=True) if not sound.utterance.gone]
        if not there:
            return
        sounds, mels = tuple(sound for sound, _ in there), replace(mels, frames=[mel for _, mel in there])
        try:
            voiced = self._renderer.vocode([sound.work for sound in sounds], mels.frames)
        except Exception as problem:
            if len(there) > 1:  # nothing has changed: each by himself, so that it shows whose fault it is
                self._between.extendleft(((sound,), replace(mels, frames=[mel])) for sound, mel in there[::-1])
            raise StageFault([sound.utterance for sound in sounds], problem) from problem
        self._vocoder = sounds, mels, voiced

    def land(self, *, block: bool) -> None:
        """Hand over sound that has arrived. Raises StageFault."""
        if self._vocoder is None:
            if self._flow is not None and (block or self._flow[1].over):
                self._land_flow()
            return
        sounds, mels, voiced = self._vocoder
        if not (block or voiced.ready):
            return
        self._vocoder = None
        for sound in sounds:
            sound.utterance.coming_samples = 0
            sound.utterance.rendering &= not self._one_lane
        try:
            pieces = [part.pcm() for part in voiced.parts]
            flow_ms, vocoder_ms = mels.ms, voiced.ms
        except Exception as problem:
            raise StageFault([sound.utterance for sound in sounds], problem) from problem
        self._spent.flow_ms += flow_ms
        self._spent.vocoder_ms += vocoder_ms
        self._spent.chunk_s = _mean(self._spent.chunk_s, (flow_ms + vocoder_ms) / 1000)
        shared_by = len(sounds)
        for sound, pcm in zip(sounds, pieces, strict=True):
            if not sound.utterance.gone:
                self._hand_over(sound, pcm, flow_ms / shared_by, vocoder_ms / shared_by)

    def _hand_over(self, sound: _Sound, pcm: bytes, flow_ms: float, vocoder_ms: float) -> None:
        utterance, passage, chunk = sound.utterance, sound.passage, sound.work.chunk
        if passage.base_sample is None:
            passage.base_sample = utterance.outlet.rendered_samples
        words = passage.words(chunk)
        if chunk.final and utterance.talk.truncated is not None and len(utterance.talk.passages) == 1:
            pcm = to_pcm(fade_out(to_float(pcm), _END_FADE_SAMPLES))
        utterance.outlet.render(
            pcm, words, text_range=passage.text_range, wall_ms=utterance.lm_ms + flow_ms + vocoder_ms,
            stages_ms=(("lm", utterance.lm_ms), ("flow", flow_ms), ("vocoder", vocoder_ms)),
        )  # fmt: skip
        utterance.lm_ms = 0.0
        utterance.chunks += 1
        utterance.alone = False
        if self._one_lane:
            passage.done(chunk)
        if chunk.final:
            self._renderer.close(passage.stream)
            utterance.talk.passages.popleft()
            self._freed()

    def close(self, stream: SoundStream) -> None:
        """Nobody listens to ``stream`` any more. What the flow is at is let go of when it is through."""
        if self._flow is not None and any(sound.work.stream is stream for sound in self._flow[0]):
            self._left.append(stream)
        else:
            self._renderer.close(stream)

    def recover(self, utterance: Utterance) -> None:
        """After a fault: the flow's memory is made anew by the next pass, unless that is through or under way."""
        fine = [*(self._flow[0] if self._flow is not None else ()), *(one for some, _ in self._between for one in some)]
        if utterance.talk.passages and all(sound.utterance is not utterance for sound in fine):
            self._renderer.recover(utterance.talk.passages[0].stream)
