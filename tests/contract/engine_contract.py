"""Checks of the engine protocol (``tts_worker.engine.base``) that run against any engine.

A test module describes its engine as an ``EngineCase`` and runs the table:

    @pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
    def test_engine_contract(check): check(CASE)

The checks use only ``handle`` and ``step``, with a simulated clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tests.fakes.assigned_booleans import assigned_booleans
from tests.fakes.opened_files import opened_files
from tts_worker.engine.base import Engine
from tts_worker.engine.scheduler import Budgets, Candidate, Plan
from tts_worker.engine.shell import EngineShell
from tts_worker.errors import ErrorCode
from tts_worker.types import (
    BYTES_PER_SAMPLE,
    SAMPLE_RATE_HZ,
    Audio,
    Boundary,
    Cancel,
    Command,
    Credit,
    Done,
    EndText,
    Event,
    Failed,
    Hold,
    Open,
    Release,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
    WordTiming,
)

PLENTY_SAMPLES = 1 << 40
MAX_STEPS = 20_000


@dataclass(frozen=True)
class EngineCase:
    """An engine under test.

    Attributes:
        make: Builds an engine with at least 9 utterance slots.
        params: Parameters that the engine supports.
        segments: Text of a few seconds that the engine can speak with ``params``.
        unspeakable: Text that gives no audio.
    """

    make: Callable[[], Engine]
    params: SynthesisParams
    segments: tuple[Segment, ...]
    unspeakable: tuple[Segment, ...]


def segments(*parts: tuple[str, Boundary]) -> tuple[Segment, ...]:
    """Build contiguous segments from consecutive parts of a text, without replacements."""
    result = []
    start = 0
    for index, (text, boundary) in enumerate(parts):
        end = start + len(text)
        result.append(Segment(index, (Span(text, start, end),), start, end, boundary))
        start = end
    return tuple(result)


# -- driving an engine ------------------------------------------------------------------------------------------------


@dataclass
class EngineOutput:
    """Events of one utterance."""

    audio: list[Audio] = field(default_factory=list)
    ends: list[Done | Failed] = field(default_factory=list)

    @property
    def pcm(self) -> bytes:
        return b"".join(chunk.pcm for chunk in self.audio)

    @property
    def samples(self) -> int:
        return sum(chunk.samples for chunk in self.audio)

    @property
    def words(self) -> list[WordTiming]:
        return [word for chunk in self.audio for word in chunk.words]

    @property
    def content(self) -> tuple[bytes, list[WordTiming], list[Done | Failed]]:
        """Everything that must not depend on timing or on other utterances."""
        return self.pcm, self.words, [replace(end, key=UtteranceKey("", 0)) for end in self.ends]


class EngineDriver:
    """Drives an engine and collects its output per utterance."""

    def __init__(self, case: EngineCase) -> None:
        self.case = case
        self.engine = case.make()
        self.outputs: dict[UtteranceKey, EngineOutput] = {}
        self._now_s = 0.0

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.engine.handle(command)

    def step(self) -> Sequence[Event]:
        self._now_s += 0.01
        events = self.engine.step(self._now_s)
        for event in events:
            output = self.outputs.setdefault(event.key, EngineOutput())
            assert not output.ends, "no event after the terminal one"
            if isinstance(event, Audio):
                output.audio.append(event)
            else:
                output.ends.append(event)
        return events

    def drain(self) -> None:
        """Step until the engine has no work."""
        for _ in range(MAX_STEPS):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine never runs out of work")

    def open(self, key: UtteranceKey, credit_samples: int = PLENTY_SAMPLES) -> EngineOutput:
        self.send(Open(key, self.case.params, credit_samples))
        return self.outputs.setdefault(key, EngineOutput())

    def send_text(self, key: UtteranceKey, text: Iterable[Segment] | None = None, *, end: bool = True) -> None:
        """Send segments (by default those of the case) and, if ``end``, the end of the text."""
        for segment in self.case.segments if text is None else text:
            self.send(Text(key, segment))
        if end:
            self.send(EndText(key))


KEY = UtteranceKey("contract", 1)


def _speak_alone(case: EngineCase) -> EngineOutput:
    """The output of a new engine that speaks the text of the case and nothing else."""
    driver = EngineDriver(case)
    output = driver.open(KEY)
    driver.send_text(KEY)
    driver.drain()
    assert output.samples > 0
    return output


_solo_output = lru_cache(_speak_alone)
"""The same, computed once for each case: what other conditions must not change (checks only read it)."""


def _other_key(number: int) -> UtteranceKey:
    return UtteranceKey(f"other-{number}", number)


# -- checks ------------------------------------------------------------------------------------------------------------


def audio_is_gap_free_and_ends_with_one_done(case: EngineCase) -> None:
    output = _solo_output(case)
    position = 0
    for index, chunk in enumerate(output.audio):
        assert chunk.pcm
        assert len(chunk.pcm) % 2 == 0
        assert chunk.meta.index == index
        assert chunk.meta.start_sample == position
        position += chunk.samples
    assert output.ends == [Done(KEY)]


def chunks_refer_to_their_segment(case: EngineCase) -> None:
    ranges = {(segment.start, segment.end) for segment in case.segments}
    last = 0
    for chunk in _solo_output(case).audio:
        assert any(a <= chunk.meta.text_start <= chunk.meta.text_end <= b for a, b in ranges)
        assert chunk.meta.text_start >= last
        last = chunk.meta.text_start


def credit_bounds_audio_to_the_sample(case: EngineCase) -> None:
    total = _solo_output(case).samples
    rng = random.Random(5)
    driver = EngineDriver(case)
    output = driver.open(KEY, credit_samples=0)
    driver.send_text(KEY)
    granted = 0
    while True:
        driver.drain()
        assert output.samples <= granted
        if output.ends:
            break
        assert granted < total + 48_000, "all audio was granted but not all was emitted"
        amount = rng.choice((1, 7, 479, 480, 4800, 24_000))
        granted += amount
        driver.send(Credit(KEY, amount))
    assert output.samples == total


def exact_credit_suffices_for_done(case: EngineCase) -> None:
    expected = _solo_output(case)
    driver = EngineDriver(case)
    output = driver.open(KEY, credit_samples=expected.samples)
    driver.send_text(KEY)
    driver.drain()
    assert output.content == expected.content


def output_is_independent_of_credit_timing(case: EngineCase) -> None:
    expected = _solo_output(case)
    for grant in (333, 4801):
        driver = EngineDriver(case)
        output = driver.open(KEY, credit_samples=grant)
        driver.send_text(KEY)
        while not output.ends:
            driver.drain()
            driver.send(Credit(KEY, grant))
        assert output.content == expected.content


def output_is_independent_of_text_timing(case: EngineCase) -> None:
    expected = _solo_output(case)
    driver = EngineDriver(case)
    output = driver.open(KEY)
    for segment in case.segments:
        driver.send_text(KEY, [segment], end=False)
        driver.drain()
        assert not output.ends, "ended before the end of the text"
    driver.send(EndText(KEY))
    driver.drain()
    assert output.content == expected.content


def break_is_silence_of_its_length(case: EngineCase) -> None:
    """Two breaks between the segments, the second without text, and one at the end."""
    first, *rest = case.segments
    text = [
        replace(first, boundary=Boundary.BREAK, pause_ms=300),
        Segment(1, (), first.end, first.end, Boundary.BREAK, pause_ms=200),
        *(replace(segment, index=segment.index + 1) for segment in rest),
    ]
    text[-1] = replace(text[-1], boundary=Boundary.BREAK, pause_ms=100)
    driver = EngineDriver(case)
    output = driver.open(KEY)
    driver.send_text(KEY, text)
    driver.drain()
    silent_samples = SAMPLE_RATE_HZ // 2
    speech_end = output.pcm.index(bytes(BYTES_PER_SAMPLE * silent_samples)) // BYTES_PER_SAMPLE
    before = [word for word in output.words if word.end_char <= first.end]
    after = [word for word in output.words if word.start_char >= first.end]
    assert len(before) + len(after) == len(output.words)
    assert all(word.start_sample < speech_end for word in before)
    assert all(word.start_sample >= speech_end + silent_samples for word in after)
    assert not any(output.pcm[-BYTES_PER_SAMPLE * SAMPLE_RATE_HZ // 10 :])
    paced = EngineDriver(case)
    same = paced.open(KEY, credit_samples=4801)
    for segment in text:
        paced.send_text(KEY, [segment], end=False)
        paced.drain()
    paced.send(EndText(KEY))
    while not same.ends:
        paced.drain()
        paced.send(Credit(KEY, 4801))
    assert same.content == output.content


def break_replaces_the_pause_of_a_sentence(case: EngineCase) -> None:
    first, second, *_ = case.segments
    outputs = []
    pause = Segment(1, (), first.end, first.end, Boundary.BREAK, pause_ms=300)
    for text in (
        [replace(first, boundary=Boundary.BREAK, pause_ms=300), second],
        [replace(first, boundary=Boundary.SENTENCE), pause, second],
    ):
        driver = EngineDriver(case)
        outputs.append(driver.open(KEY))
        driver.send_text(KEY, text)
        driver.drain()
    assert outputs[0].content == outputs[1].content


def output_is_independent_of_other_utterances(case: EngineCase) -> None:
    expected = _solo_output(case)
    rng = random.Random(11)
    driver = EngineDriver(case)
    others = [driver.open(_other_key(number), credit_samples=rng.randrange(2000)) for number in range(8)]
    texts = {number: list(case.segments) for number in range(8)}
    driver.drain()
    while not all(output.ends for output in others):
        number = rng.randrange(8)
        if texts[number] and rng.random() < 0.5:
            driver.send_text(_other_key(number), [texts[number].pop(0)], end=not texts[number])
        driver.send(Credit(_other_key(number), rng.randrange(1, 9000)))
        for _ in range(rng.randrange(4)):
            driver.step()
    for output in others:
        assert output.content == expected.content


def output_is_the_same_on_another_instance(case: EngineCase) -> None:
    assert _speak_alone(case).content == _solo_output(case).content


def release_continues_at_the_held_sample(case: EngineCase) -> None:
    expected = _solo_output(case)
    for steps_before in (0, 1, 2, 5):
        driver = EngineDriver(case)
        output = driver.open(KEY)
        driver.send_text(KEY)
        for _ in range(steps_before):
            driver.step()
        if output.ends:
            continue
        before = output.samples
        driver.send(Hold(KEY), Hold(KEY), Credit(KEY, 480))
        assert not driver.engine.has_work
        assert not driver.step()
        assert output.samples == before
        driver.send(Release(KEY), Release(KEY))
        driver.drain()
        assert output.content == expected.content


def hold_does_not_affect_other_utterances(case: EngineCase) -> None:
    driver = EngineDriver(case)
    held = driver.open(KEY)
    other = driver.open(_other_key(1))
    driver.send_text(KEY)
    driver.send_text(_other_key(1))
    driver.send(Hold(KEY))
    driver.drain()
    assert not held.audio
    assert [type(end) for end in other.ends] == [Done]


def cancel_ends_events_and_frees_all_slots(case: EngineCase) -> None:
    slots = case.make().info.max_utterances
    for steps_before in (0, 1, 3):
        driver = EngineDriver(case)
        for round_number in range(3):
            keys = [UtteranceKey(f"s{n}", round_number) for n in range(slots)]
            for key in keys:
                driver.open(key)
            driver.send_text(keys[0])
            for _ in range(steps_before):
                driver.step()
            seen = {key: (driver.outputs[key].samples, len(driver.outputs[key].ends)) for key in keys}
            for key in keys:
                driver.send(Cancel(key))
            assert not driver.engine.has_work
            assert not driver.step()
            assert seen == {key: (driver.outputs[key].samples, len(driver.outputs[key].ends)) for key in keys}
            assert not any(isinstance(end, Failed) for key in keys for end in driver.outputs[key].ends)


def cancel_does_not_affect_other_utterances(case: EngineCase) -> None:
    expected = _solo_output(case)
    driver = EngineDriver(case)
    driver.open(_other_key(1))
    output = driver.open(KEY)
    driver.send_text(_other_key(1))
    driver.send_text(KEY)
    driver.step()
    driver.step()
    driver.send(Cancel(_other_key(1)))
    driver.drain()
    assert output.content == expected.content


def unknown_and_ended_keys_are_ignored(case: EngineCase) -> None:
    driver = EngineDriver(case)
    output = driver.open(KEY)
    driver.send_text(KEY)
    driver.drain()
    unknown = UtteranceKey("unknown", 9)
    for key in (KEY, unknown):
        driver.send(Text(key, case.segments[0]), Credit(key, 480), Hold(key), Release(key), EndText(key), Cancel(key))
        assert not driver.engine.has_work
        assert not driver.step()
    assert len(output.ends) == 1
    assert unknown not in driver.outputs


def utterance_stays_open_until_end_of_text(case: EngineCase) -> None:
    driver = EngineDriver(case)
    output = driver.open(KEY)
    driver.send_text(KEY, end=False)
    driver.drain()
    assert not output.ends
    assert not driver.engine.has_work
    driver.send(EndText(KEY))
    driver.drain()
    assert output.ends == [Done(KEY)]


def utterance_without_text_is_done(case: EngineCase) -> None:
    for credit_samples in (0, PLENTY_SAMPLES):
        driver = EngineDriver(case)
        output = driver.open(KEY, credit_samples)
        driver.send(EndText(KEY))
        driver.drain()
        assert not output.audio
        assert output.ends == [Done(KEY)]


def input_after_the_end_is_ignored(case: EngineCase) -> None:
    driver = EngineDriver(case)
    output = driver.open(KEY)
    driver.send_text(KEY)
    driver.send_text(KEY)
    empty_key = _other_key(2)
    empty = driver.open(empty_key, 0)
    driver.send(EndText(empty_key), EndText(empty_key), Text(empty_key, case.segments[0]), EndText(empty_key))
    driver.drain()
    assert output.content == _solo_output(case).content
    assert not empty.audio
    assert empty.ends == [Done(empty_key)]


def unspeakable_text_fails_with_typed_error(case: EngineCase) -> None:
    driver = EngineDriver(case)
    output = driver.open(KEY)
    driver.send_text(KEY, case.unspeakable)
    driver.drain()
    assert not output.audio
    (end,) = output.ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.UNSPEAKABLE_TEXT
    assert not any(segment.text in end.error.message for segment in case.unspeakable)


def partly_unspeakable_text_is_done(case: EngineCase) -> None:
    driver = EngineDriver(case)
    output = driver.open(KEY)
    shift = case.segments[0].end
    for segment in (case.segments[0], *case.unspeakable):
        if segment is not case.segments[0]:
            spans = tuple(span._replace(start=span.start + shift, end=span.end + shift) for span in segment.spans)
            segment = Segment(segment.index + 1, spans, segment.start + shift, segment.end + shift, segment.boundary)
        driver.send(Text(KEY, segment))
    driver.send(EndText(KEY))
    driver.drain()
    assert output.audio
    (end,) = output.ends
    assert isinstance(end, Done)
    assert end == Done(KEY, skipped=end.skipped)


def unsupported_voice_or_speed_is_rejected(case: EngineCase) -> None:
    slowest, fastest = case.make().info.speed_range
    for params, code in (
        (replace(case.params, voice="no such voice"), ErrorCode.UNKNOWN_VOICE),
        (replace(case.params, speed=slowest / 2), ErrorCode.INVALID_REQUEST),
        (replace(case.params, speed=fastest * 2), ErrorCode.INVALID_REQUEST),
        (replace(case.params, speed=float("nan")), ErrorCode.INVALID_REQUEST),
    ):
        driver = EngineDriver(case)
        driver.send(Open(KEY, params, PLENTY_SAMPLES))
        driver.send_text(KEY)
        driver.drain()
        output = driver.outputs[KEY]
        assert not output.audio
        assert [end.error.code for end in output.ends if isinstance(end, Failed)] == [code]


def cancel_of_a_rejected_utterance_ends_events(case: EngineCase) -> None:
    driver = EngineDriver(case)
    driver.send(Open(KEY, replace(case.params, speed=float("nan")), PLENTY_SAMPLES), Cancel(KEY))
    driver.drain()
    assert KEY not in driver.outputs


def open_beyond_capacity_is_rejected(case: EngineCase) -> None:
    driver = EngineDriver(case)
    slots = driver.engine.info.max_utterances
    served = [driver.open(_other_key(number)) for number in range(slots)]
    rejected = driver.open(KEY)
    driver.send_text(KEY)
    driver.send_text(_other_key(0))
    for number in range(1, slots):
        driver.send(EndText(_other_key(number)))
    driver.drain()
    (end,) = rejected.ends
    assert isinstance(end, Failed)
    assert end.error.retryable
    assert not rejected.audio
    assert all([type(e) for e in output.ends] == [Done] for output in served)
    assert served[0].samples > 0
    again = driver.open(UtteranceKey("later", 1))
    driver.send_text(UtteranceKey("later", 1))
    driver.drain()
    assert again.content == served[0].content


def words_are_ordered_and_precede_their_audio(case: EngineCase) -> None:
    output = _solo_output(case)
    text_end = case.segments[-1].end
    last_char = last_start = last_end = 0
    for word in output.words:
        assert last_char <= word.start_char < word.end_char <= text_end
        assert last_start <= word.start_sample <= word.end_sample <= output.samples
        assert last_end <= word.start_sample
        last_char = word.end_char
        last_start = word.start_sample
        last_end = word.end_sample
    for chunk in output.audio:
        for word in chunk.words:
            assert chunk.meta.start_sample <= word.start_sample, "a word event must not follow its audio"
    emitted_words: set[WordTiming] = set()
    for chunk in output.audio:
        emitted_words.update(chunk.words)
        end = chunk.meta.start_sample + chunk.samples
        assert emitted_words >= {word for word in output.words if word.start_sample < end}, "a word must not be late"


def closed_engine_has_no_work(case: EngineCase) -> None:
    driver = EngineDriver(case)
    driver.open(KEY)
    driver.send_text(KEY)
    driver.step()
    driver.engine.close()
    assert not driver.engine.has_work


def warm_up_does_not_change_output(case: EngineCase) -> None:
    expected = _solo_output(case)
    driver = EngineDriver(case)
    driver.engine.warm_up()
    assert not driver.engine.has_work
    with opened_files() as files:
        output = driver.open(KEY)
        driver.send_text(KEY)
        driver.drain()
    assert output.content == expected.content
    assert files == [], "a warm engine waits for no disk"


def running_engine_assigns_no_boolean(case: EngineCase) -> None:
    """Otherwise two of them could say what cannot be: use a phase, a count, or the data that it follows from."""
    driver = EngineDriver(case)
    with assigned_booleans() as assigned:
        output = driver.open(KEY, credit_samples=480)
        cancelled, unspeakable, rejected = (_other_key(number) for number in range(3))
        driver.open(cancelled)
        driver.open(unspeakable)
        driver.send(Open(rejected, replace(case.params, voice="no such voice"), PLENTY_SAMPLES))
        driver.send_text(KEY, case.segments[:1], end=False)
        driver.send_text(cancelled)
        driver.send_text(unspeakable, case.unspeakable)
        driver.step()
        driver.send(Hold(KEY), Cancel(cancelled))
        driver.drain()
        driver.send_text(KEY, case.segments[1:])
        driver.send(Release(KEY))
        driver.drain()
        driver.send(Credit(KEY, PLENTY_SAMPLES))
        driver.drain()
        driver.engine.close()
    assert output.ends == [Done(KEY)]
    assert assigned == [], assigned


def step_plans_once_at_most(case: EngineCase) -> None:
    driver = EngineDriver(case)
    engine = driver.engine
    assert isinstance(engine, EngineShell)
    policy = engine.policy
    planned_steps: list[int] = []

    def note_step(candidates: Sequence[Candidate], budgets: Budgets, now_us: int) -> Plan:
        planned_steps.append(now_us)
        return policy(candidates, budgets, now_us)

    engine.policy = note_step
    for key in (KEY, UtteranceKey("contract", 2)):
        driver.open(key)
        driver.send_text(key)
    driver.drain()
    assert planned_steps
    assert len(planned_steps) == len(set(planned_steps)), "a plan takes the turn and the pages of its utterances"


ContractCheck = Callable[[EngineCase], None]

CONTRACT: tuple[ContractCheck, ...] = (
    audio_is_gap_free_and_ends_with_one_done,
    chunks_refer_to_their_segment,
    credit_bounds_audio_to_the_sample,
    exact_credit_suffices_for_done,
    output_is_independent_of_credit_timing,
    output_is_independent_of_text_timing,
    break_is_silence_of_its_length,
    break_replaces_the_pause_of_a_sentence,
    output_is_independent_of_other_utterances,
    output_is_the_same_on_another_instance,
    release_continues_at_the_held_sample,
    hold_does_not_affect_other_utterances,
    cancel_ends_events_and_frees_all_slots,
    cancel_does_not_affect_other_utterances,
    unknown_and_ended_keys_are_ignored,
    utterance_stays_open_until_end_of_text,
    utterance_without_text_is_done,
    input_after_the_end_is_ignored,
    unspeakable_text_fails_with_typed_error,
    partly_unspeakable_text_is_done,
    unsupported_voice_or_speed_is_rejected,
    cancel_of_a_rejected_utterance_ends_events,
    open_beyond_capacity_is_rejected,
    words_are_ordered_and_precede_their_audio,
    closed_engine_has_no_work,
    running_engine_assigns_no_boolean,
    step_plans_once_at_most,
    warm_up_does_not_change_output,
)
