"""Scheduling: what an engine does in one step. Integers only, without clock and tensors.

``Scheduler.schedule`` takes a ``Candidate`` for every utterance that could use a step and the ``Budgets`` of the step.
It returns a ``Plan``: at most one batch of the language model and one of the audio networks.

**Order.** The stream with the least slack goes first, in two classes. Slack is the number of samples until underrun if
no more audio is rendered. *Paced* streams (calls) take audio at the pace of playback, so their slack is known: a stream
that plays has its playout lead, and one that has not started has the rest of its first-audio target. A first chunk may
be urgent but never precedes a stream close to underrun: a gap in running speech is worse than a late start. *Unpaced*
streams (downloads, most compatibility APIs) take audio as fast as it is rendered, which says nothing about their
playback. They are measured against a virtual playhead, and no unpaced stream precedes a paced one. Two rules guarantee
progress: unpaced streams that wait beside paced ones get ``UNPACED_SHARE`` of the engine's time, and among unpaced
streams the one with the least virtual lead goes first, so first chunks precede others and the rest is shared evenly.

**Batches.** The most urgent candidate determines the operation, and others with the same one join it: calls before
downloads, and no download beside a call that awaits its first audio. A member of a failed batch runs alone, so that a
second failure shows which member causes it.

**First chunk.** A prefill may go on to the audio of a call's first chunk without the host (``on_device_draws``), if the
audio runner would be idle otherwise and no other call waits for its first audio.

**Pages** of the flow cache. A started utterance takes pages on demand. A new one is admitted once there are enough for
its whole estimated length and for all started ones, so that it does not run out half-way. A new download leaves some
pages to calls while another download holds pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tts_worker.types import SAMPLE_RATE_HZ, UtteranceKey

FIRST_AUDIO_TARGET_SAMPLES = SAMPLE_RATE_HZ // 4
"""A paced stream that has not started has 250 ms of slack and precedes every stream with more."""

FIRST_AUDIO_FLOOR_SAMPLES = 3 * SAMPLE_RATE_HZ // 20
"""The slack of a waiting first chunk falls to 150 ms (several steps): it never precedes a stream with less."""

UNPACED_LEAD_SAMPLES = 3 * SAMPLE_RATE_HZ
"""Limit of the virtual lead that counts for unpaced streams.

Beyond it they take turns, so that a new download does not stop the others until it has caught up with them.
"""

UNPACED_SHARE = 1 / 16
"""Share of the engine's time for unpaced streams that wait beside paced ones, so that downloads always finish."""

FIRST_AUDIO_BURST_STEPS = 4
"""Most decode steps of a burst while a call waits for its first audio, so that it is not delayed by a long burst."""

MIN_BURST_STEPS = 2
"""Fewest decode steps of a burst: every burst costs a round trip of the host, for its whole batch."""

_MAX_STEP_US = 250_000
"""A longer interval between two steps includes idle time, so a step is charged with at most this."""

_INITIAL_STEP_US = 100_000
"""Assumed time of the first unpaced step."""


class Need(Enum):
    """An operation that an utterance can need next. Engines with one stage use only ``RENDER``."""

    NONE = "none"  # it waits for text, credit, pages or a result in flight
    PREPARE_VOICE = "prepare voice"  # compute the next chunk of the voice's prompt
    PREFILL = "prefill"  # feed text, or more than one input, to the language model
    DECODE = "decode"  # draw speech tokens
    PREDICT = "predict"  # run the network before the audio stage, for engines without a language model
    RENDER = "render"  # render the next chunk of audio


TOKEN_NEEDS = frozenset({Need.PREFILL, Need.DECODE, Need.PREDICT})
"""Operations of the first stage, the token runner of CosyVoice; the others belong to the audio runner."""


class Candidate(NamedTuple):
    """An utterance that could use a step: it has text and credit and is not held.

    A named tuple, because one is built for every utterance and step.

    Attributes:
        key: The utterance.
        lead_samples: Audio rendered and not yet played, by the client or, if unpaced, by a virtual playhead.
        waiting_since_us: Since when its operation has been due. The count starts anew when audio is emitted, and in
            engines with batches after each step that the utterance determined.
        started: Whether it has emitted audio.
        paced: Whether the client takes audio at the pace of playback.
        needs: Its next operation. With ``NONE`` it may only join a batch.
        joins: The operation of the token runner with which it may join a batch.
        inputs: Inputs of its prefill; an estimate if the run has not begun.
        tokens_until_due: Tokens that its first chunk still lacks; 0 or less if the chunk is due.
        on_device_draws: Ids that its first chunk takes, if it can be rendered before the host has read them; otherwise
            0. The pages are those of the chunk.
        pages: Pages that its next audio operation takes.
        pages_ahead: Estimated pages that it will take until its pages are returned, of which ``pages`` are the first.
        starts: Whether that operation is the first of an audio segment or prompt, so that it needs admission.
        runs_alone: Whether a batch with it failed, so that it shares none.
    """

    key: UtteranceKey
    lead_samples: int
    waiting_since_us: int
    started: bool
    paced: bool = True
    needs: Need = Need.RENDER
    joins: Need = Need.NONE
    inputs: int = 1
    tokens_until_due: int = 0
    on_device_draws: int = 0
    pages: int = 0
    pages_ahead: int = 0
    starts: bool = False
    runs_alone: bool = False

    @property
    def awaits_first_audio(self) -> bool:
        """Whether it is a call without audio yet, so that no download may prolong its passes."""
        return self.paced and not self.started


class PageClaim(NamedTuple):
    """An utterance that will return pages.

    Attributes:
        key: The utterance.
        paced: Whether it is a call.
        holds: Whether it holds pages. Otherwise it is about to take some.
        pages_ahead: Estimated pages that it will still take.
    """

    key: UtteranceKey
    paced: bool
    holds: bool
    pages_ahead: int


@dataclass(frozen=True, slots=True)
class Budgets:
    """What is free in one step.

    Attributes:
        max_token_batch: Most utterances in a batch of the token runner; 0 while it is busy.
        max_audio_batch: Most utterances in a batch of the audio runner; 0 while it is busy.
        concurrent: Whether the two run at the same time. Otherwise a step starts only the more urgent batch.
        burst_steps: Decode steps of a burst.
        shared_inputs: A prefill with more inputs runs alone.
        free_pages: Free pages of the flow cache.
        evictable_pages: Pages of unused voices.
        call_pages: Pages that a starting download leaves to calls.
        claims: Utterances that will return pages. Required if a candidate ``starts``.
    """

    max_token_batch: int = 0
    max_audio_batch: int = 1
    concurrent: bool = False
    burst_steps: int = 8
    shared_inputs: int = 16
    free_pages: int = 0
    evictable_pages: int = 0
    call_pages: int = 0
    claims: Sequence[PageClaim] = ()


class Batch(NamedTuple):
    """Utterances that share one operation.

    Attributes:
        operation: The operation.
        members: The utterances, the most urgent first.
        steps: Decode steps of a burst; 0 for other operations.
        on_device_draws: If not 0, a prefill draws so many ids, and the audio runner renders the first chunks from them
            without the host.
    """

    operation: Need
    members: tuple[UtteranceKey, ...]
    steps: int = 0
    on_device_draws: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do in one step.

    Attributes:
        tokens: ``PREFILL``, ``DECODE`` or ``PREDICT``.
        audio: ``PREPARE_VOICE`` of one utterance, or ``RENDER``.
        free_pages: Pages that must be free before ``audio`` starts; unused voices are evicted for it.
        refused: Utterances that must wait until another one returns pages.
        out_of_memory: Utterances that need more pages than will ever be free.
    """

    tokens: Batch | None = None
    audio: Batch | None = None
    free_pages: int = 0
    refused: tuple[UtteranceKey, ...] = ()
    out_of_memory: tuple[UtteranceKey, ...] = ()

    @property
    def urgent(self) -> tuple[UtteranceKey, ...]:
        """The utterances that determined the batches; empty if nothing is started."""
        return tuple(batch.members[0] for batch in (self.tokens, self.audio) if batch is not None)


Policy = Callable[[Sequence[Candidate], Budgets, int], Plan]
"""Plans a step from candidates, budgets and the time in microseconds; ``Scheduler.schedule`` is one."""


# -- order -------------------------------------------------------------------------------------------------------------


def slack_samples(candidate: Candidate, now_us: int) -> int:
    """Return the samples until underrun; comparable within a class only.

    Source: least-laxity scheduling over the playout lead.
    """
    if not candidate.paced:
        # A first chunk and a stream without lead are equally urgent and served in order of arrival.
        return min(max(0, candidate.lead_samples), UNPACED_LEAD_SAMPLES) if candidate.started else 0
    if candidate.started:
        return candidate.lead_samples
    waited = (now_us - candidate.waiting_since_us) * SAMPLE_RATE_HZ // 1_000_000
    return max(FIRST_AUDIO_FLOOR_SAMPLES, FIRST_AUDIO_TARGET_SAMPLES - waited)


def by_urgency(candidates: Iterable[Candidate], now_us: int) -> list[Candidate]:
    """Sort candidates by urgency, paced before unpaced.

    Ties are broken by the longer wait, then by the order of ``candidates``, which engines list in order of arrival: all
    that arrive during a step begin to wait at the same time.
    """

    def urgency(candidate: Candidate) -> tuple[bool, int, int]:
        return not candidate.paced, slack_samples(candidate, now_us), candidate.waiting_since_us

    return sorted(candidates, key=urgency)


# -- batches -----------------------------------------------------------------------------------------------------------


def _joinable(urgent: Candidate, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return those of ``candidates`` that may share a batch with ``urgent``, calls before downloads."""
    if urgent.runs_alone:
        return []
    others = [c for c in candidates if c.key != urgent.key and not c.runs_alone]
    if any(candidate.awaits_first_audio for candidate in (urgent, *others)):
        others = [c for c in others if c.paced]
    others.sort(key=lambda candidate: not candidate.paced)
    return others


def token_batch(urgent: Candidate, candidates: Iterable[Candidate], budgets: Budgets) -> list[Candidate]:
    """Return the batch of ``urgent``: it, and those of ``candidates`` that may join."""
    joining = [c for c in candidates if c.joins is urgent.needs]
    if urgent.needs is Need.PREFILL:  # padded to its longest member
        has_room = urgent.inputs <= budgets.shared_inputs
        joining = [c for c in joining if has_room and c.inputs <= budgets.shared_inputs]
    return [urgent, *_joinable(urgent, joining)][: budgets.max_token_batch]


def burst_steps(batch: Sequence[Candidate], waiting: Iterable[Candidate], budgets: Budgets) -> int:
    """Return the decode steps of a burst of ``batch``, of which the first member is the most urgent.

    A burst that leads to a first chunk has no more steps than the chunk needs. It is short while the first chunk itself
    is rendered, and while another call waits for the end of the burst to get its first audio.
    """
    urgent = batch[0]
    steps = budgets.burst_steps
    if not urgent.started:
        missing = urgent.tokens_until_due
        steps = min(steps, max(MIN_BURST_STEPS, missing) if missing > 0 else FIRST_AUDIO_BURST_STEPS)
    members = {candidate.key for candidate in batch}
    for candidate in waiting:
        if candidate.key == urgent.key or not candidate.awaits_first_audio:
            continue
        if candidate.key in members:
            is_delayed = 0 < candidate.tokens_until_due < steps
        else:
            is_delayed = candidate.needs in TOKEN_NEEDS or not budgets.concurrent
        if is_delayed:
            return min(steps, FIRST_AUDIO_BURST_STEPS)
    return steps


# -- pages -------------------------------------------------------------------------------------------------------------


class Admission(Enum):
    """Whether an utterance may take pages."""

    GRANTED = "granted"
    REFUSED = "refused"  # another utterance will return pages
    OUT_OF_MEMORY = "out_of_memory"  # no other utterance will


class PageLedger:
    """Admission to pages during one call of ``schedule``.

    Attributes:
        required: Pages that must be free for all granted requests.
        refused: Utterances whose request was refused.
        out_of_memory: Utterances whose request can never be granted.
    """

    def __init__(self, budgets: Budgets) -> None:
        self.required = 0
        self.refused: list[UtteranceKey] = []
        self.out_of_memory: list[UtteranceKey] = []
        self._available = budgets.free_pages + budgets.evictable_pages
        self._call_pages = budgets.call_pages
        self._claims = list(budgets.claims)
        self._taken = 0

    def take(self, candidates: Iterable[Candidate]) -> bool:
        """Take the pages of all ``candidates`` if they are free for all. Records no refusal."""
        before = (self.required, self._taken, list(self._claims))
        for candidate in candidates:
            wanted = self._wanted(candidate)
            if self._available < wanted:
                self.required, self._taken, self._claims = before
                return False
            self._grant(candidate, wanted)
        return True

    def _wanted(self, candidate: Candidate) -> int:
        """Return the pages that must be free for ``candidate`` and all that was granted."""
        holders = [claim for claim in self._claims if claim.holds and claim.key != candidate.key]
        wanted = self._taken + candidate.pages
        if candidate.starts and holders:
            wanted += candidate.pages_ahead - candidate.pages + sum(claim.pages_ahead for claim in holders)
            if not candidate.paced and any(not claim.paced for claim in holders):
                wanted += self._call_pages
        return wanted

    def _grant(self, candidate: Candidate, wanted: int) -> None:
        self._taken += candidate.pages
        self.required = wanted
        if candidate.starts:
            ahead = candidate.pages_ahead - candidate.pages
            self._claims.append(PageClaim(candidate.key, candidate.paced, True, ahead))

    def admit(self, candidate: Candidate, *, may_fail: bool = True) -> Admission:
        """Decide whether ``candidate`` may take its pages, and take them if so.

        Args:
            candidate: The utterance.
            may_fail: Whether to record that it is out of memory. Otherwise another request in the same step took the
                pages, and it asks again.
        """
        wanted = self._wanted(candidate)
        if self._available >= wanted:
            self._grant(candidate, wanted)
            return Admission.GRANTED
        others = [claim for claim in self._claims if claim.key != candidate.key]
        if candidate.starts and others:
            self._claims = others  # it returns nothing while it waits
            self.refused.append(candidate.key)
            return Admission.REFUSED
        if may_fail:
            self.out_of_memory.append(candidate.key)
        return Admission.OUT_OF_MEMORY


def audio_batch(
    urgent: Candidate, waiting: Iterable[Candidate], budgets: Budgets, pages: PageLedger
) -> list[Candidate]:
    """Return the batch of ``urgent``: it, and the chunks of ``waiting`` that may join. Empty if it gets no pages."""
    if not budgets.max_audio_batch or pages.admit(urgent) is not Admission.GRANTED:
        return []
    batch = [urgent]
    if urgent.needs is Need.PREPARE_VOICE or budgets.max_audio_batch == 1:
        return batch
    for candidate in _joinable(urgent, [c for c in waiting if c.needs is Need.RENDER]):
        if len(batch) == budgets.max_audio_batch:
            break
        admission = pages.admit(candidate, may_fail=False)
        if admission is Admission.OUT_OF_MEMORY:
            break  # less urgent ones must not take the pages that it needs
        if admission is Admission.GRANTED:
            batch.append(candidate)
    return batch


# -- first chunk -------------------------------------------------------------------------------------------------------


def on_device_draws(
    batch: Sequence[Candidate], waiting: Iterable[Candidate], budgets: Budgets, pages: PageLedger
) -> int:
    """Return after how many ids the prefill of ``batch`` goes on to the first chunks without the host; 0 if not.

    The audio runner waits for the ids meanwhile, so this must not delay audio of other utterances, nor the tokens of
    another first chunk. All members must need equally many ids, so that their chunks share a pass.
    """
    draws = batch[0].on_device_draws
    if not draws or len(batch) > budgets.max_audio_batch or any(c.on_device_draws != draws for c in batch):
        return 0
    members = {candidate.key for candidate in batch}
    others = [candidate for candidate in waiting if candidate.key not in members]
    if any(other.needs not in TOKEN_NEEDS or other.awaits_first_audio for other in others):
        return 0
    return draws if pages.take(batch) else 0


class ChunkTimes(NamedTuple):
    """Measured times of a chunk: drawing its tokens, and rendering one batch of chunks."""

    decode_us: int
    render_us: int


def defers_first_chunk(
    first: Candidate,
    candidates: Callable[[int], Iterable[Candidate]],
    most_candidates: int,
    times: ChunkTimes,
    render_batch: int,
    now_us: int,
) -> bool:
    """Whether a rendered first chunk should wait for the second one.

    A first chunk that is shorter than the time to the second one would cause an underrun. Before the second one, those
    of other utterances are rendered that are more urgent than ``first`` would be with its first chunk.

    Args:
        first: The utterance; its lead is the first chunk.
        candidates: Finds the utterances that want audio at a time. Called only if it depends on them.
        most_candidates: Their number, at most.
        times: Measured times.
        render_batch: Chunks of one render batch.
        now_us: The time.
    """

    def comes_too_late(ahead: int) -> bool:
        next_us = times.decode_us + (1 + ahead // render_batch) * times.render_us
        return first.lead_samples * 1_000_000 < next_us * SAMPLE_RATE_HZ

    if comes_too_late(0) or not comes_too_late(most_candidates):
        return comes_too_late(0)
    started = first._replace(started=True)
    others = [candidate for candidate in candidates(now_us) if candidate.key != first.key]
    return comes_too_late(by_urgency([started, *others], now_us).index(started))


# -- scheduler ---------------------------------------------------------------------------------------------------------


class _TimedStep(NamedTuple):
    """A step of a runner that is not timed yet."""

    is_paced: bool
    started_at_us: int


class _UnpacedShare:
    """The share of one runner's time for unpaced streams that wait beside paced ones.

    While a paced stream is served and an unpaced one waits, a share of the elapsed time is credited to the unpaced
    class; when the credit reaches a whole step, an unpaced stream goes first. A step is timed from its start to the
    first plan for which the runner is free again.
    """

    def __init__(self) -> None:
        self._credit_us = 0.0
        self._step_us = _INITIAL_STEP_US  # time of the last unpaced step
        self._step: _TimedStep | None = None

    def order(self, waiting: list[Candidate], now_us: int) -> list[Candidate]:
        """Return ``waiting`` in the order in which the runner, which is free, may serve it."""
        if self._step is not None:
            elapsed_us = min(max(0, now_us - self._step.started_at_us), _MAX_STEP_US)
            if self._step.is_paced:
                self._credit_us += elapsed_us * UNPACED_SHARE / (1 - UNPACED_SHARE)
            else:
                self._step_us = elapsed_us
            self._step = None
        if self._credit_us >= self._step_us:
            first = next((candidate for candidate in waiting if not candidate.paced), None)
            if first is not None:
                return [first, *(candidate for candidate in waiting if candidate is not first)]
        return waiting

    def record(self, served: Candidate, waiting: Sequence[Candidate], now_us: int) -> None:
        """Record that the runner serves ``served``, one of ``waiting``, from now on."""
        if not served.paced:
            self._credit_us = 0.0
        if not served.paced or not all(candidate.paced for candidate in waiting):
            self._step = _TimedStep(served.paced, now_us)


class Scheduler:
    """Plans steps by urgency, with a minimum share of engine time for unpaced streams.

    Where tokens and audio run at the same time, each runner has its own share: when one is planned says nothing about
    how long a step of the other takes. Step times are derived from the times passed in, so the plans are deterministic.
    """

    def __init__(self) -> None:
        self._token_share = _UnpacedShare()
        self._audio_share = _UnpacedShare()  # of all steps where the runners take turns

    def schedule(self, candidates: Sequence[Candidate], budgets: Budgets, now_us: int) -> Plan:
        """Plan one step.

        Args:
            candidates: Every utterance that could use a step, in order of arrival.
            budgets: What is free.
            now_us: Time since an arbitrary start; it affects the order of work only.
        """
        waiting = by_urgency((c for c in candidates if c.needs is not Need.NONE), now_us)
        joining = [c for c in candidates if c.needs is Need.NONE]
        pages = PageLedger(budgets)

        def first_batch(share: _UnpacedShare, for_runner: list[Candidate]) -> list[Candidate]:
            """Return the first batch of ``for_runner`` that can start, and take its turn and its pages."""
            ordered = share.order(for_runner, now_us)
            for place, candidate in enumerate(ordered):
                if candidate.needs in TOKEN_NEEDS:
                    batch = token_batch(candidate, [*waiting, *joining], budgets)
                else:
                    batch = audio_batch(candidate, ordered[place + 1 :], budgets, pages)
                if batch:
                    share.record(candidate, for_runner, now_us)
                    return batch
            return []

        tokens: list[Candidate] = []
        audio: list[Candidate] = []
        if budgets.concurrent:
            if budgets.max_token_batch:
                tokens = first_batch(self._token_share, [c for c in waiting if c.needs in TOKEN_NEEDS])
            if budgets.max_audio_batch:
                audio = first_batch(self._audio_share, [c for c in waiting if c.needs not in TOKEN_NEEDS])
        elif budgets.max_token_batch or budgets.max_audio_batch:
            batch = first_batch(self._audio_share, waiting)
            is_token_batch = bool(batch) and batch[0].needs in TOKEN_NEEDS
            tokens, audio = (batch, []) if is_token_batch else ([], batch)
        return Plan(
            tokens=_plan_tokens(tokens, waiting, budgets, pages) if tokens else None,
            audio=_batch(audio) if audio else None,
            free_pages=pages.required,
            refused=tuple(pages.refused),
            out_of_memory=tuple(pages.out_of_memory),
        )


def _batch(members: Sequence[Candidate]) -> Batch:
    """Return ``members`` as a batch of the operation that the first one needs."""
    return Batch(members[0].needs, tuple(candidate.key for candidate in members))


def _plan_tokens(
    members: Sequence[Candidate], waiting: Sequence[Candidate], budgets: Budgets, pages: PageLedger
) -> Batch:
    """Return the batch of the token runner: how far a burst goes, and whether a prefill goes on to the first chunks."""
    batch = _batch(members)
    if batch.operation is Need.DECODE:
        return batch._replace(steps=burst_steps(members, waiting, budgets))
    if batch.operation is Need.PREFILL and budgets.concurrent:
        return batch._replace(on_device_draws=on_device_draws(members, waiting, budgets, pages))
    return batch
