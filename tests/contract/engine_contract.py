"""What every engine promises (``tts_worker.engine.base``), as a table of checks that any engine can be put through.

A test module describes its engine as a ``EngineCase`` and runs the table:

    @pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
    def test_the_engine_keeps(promise): promise(SUBJECT)

Everything is driven through ``handle`` and ``step`` alone, with a made-up clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tts_worker.engine.base import Engine
from tts_worker.errors import ErrorCode
from tts_worker.types import (
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
MOST_STEPS = 20_000


@dataclass(frozen=True)
class EngineCase:
    """An engine under test. ``make`` gives a fresh one with room for at least 9 utterances. ``segments`` are what
    ``params`` can say, a few seconds; ``unspeakable`` has no sound in it."""

    make: Callable[[], Engine]
    params: SynthesisParams
    segments: tuple[Segment, ...]
    unspeakable: tuple[Segment, ...]


def segments(*parts: tuple[str, Boundary]) -> tuple[Segment, ...]:
    """Segments that tile a text, said as it is written."""
    tiled = []
    place = 0
    for index, (text, boundary) in enumerate(parts):
        end = place + len(text)
        tiled.append(Segment(index, (Span(text, place, end),), place, end, boundary))
        place = end
    return tuple(tiled)


# -- driving an engine ------------------------------------------------------------------------------------------------


@dataclass
class EngineOutput:
    """What came out for one utterance."""

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
        """Everything that must not depend on timing or company."""
        return self.pcm, self.words, [replace(end, key=UtteranceKey("", 0)) for end in self.ends]


class EngineDriver:
    """An engine and what came out of it, by utterance."""

    def __init__(self, case: EngineCase) -> None:
        self.case = case
        self.engine = case.make()
        self.heard: dict[UtteranceKey, EngineOutput] = {}
        self._now_s = 0.0

    def do(self, *commands: Command) -> None:
        for command in commands:
            self.engine.handle(command)

    def step(self) -> Sequence[Event]:
        self._now_s += 0.01
        events = self.engine.step(self._now_s)
        for event in events:
            heard = self.heard.setdefault(event.key, EngineOutput())
            assert not heard.ends, "something came after the end"
            if isinstance(event, Audio):
                heard.audio.append(event)
            else:
                heard.ends.append(event)
        return events

    def drain(self) -> None:
        """Step until there is nothing to do."""
        for _ in range(MOST_STEPS):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine has work for ever")

    def open(self, key: UtteranceKey, credit_samples: int = PLENTY_SAMPLES) -> EngineOutput:
        self.do(Open(key, self.case.params, credit_samples))
        return self.heard.setdefault(key, EngineOutput())

    def say(self, key: UtteranceKey, said: Iterable[Segment] | None = None, *, end: bool = True) -> None:
        for segment in self.case.segments if said is None else said:
            self.do(Text(key, segment))
        if end:
            self.do(EndText(key))


KEY = UtteranceKey("contract", 1)


def _alone(case: EngineCase) -> EngineOutput:
    driver = EngineDriver(case)
    heard = driver.open(KEY)
    driver.say(KEY)
    driver.drain()
    assert heard.samples > 0
    return heard


def _other(number: int) -> UtteranceKey:
    return UtteranceKey(f"other-{number}", number)


# -- the promises -----------------------------------------------------------------------------------------------------


def sound_is_in_order_without_gaps_and_done_once(case: EngineCase) -> None:
    heard = _alone(case)
    place = 0
    for index, chunk in enumerate(heard.audio):
        assert chunk.pcm
        assert len(chunk.pcm) % 2 == 0
        assert chunk.meta.index == index
        assert chunk.meta.start_sample == place
        place += chunk.samples
    assert heard.ends == [Done(KEY)]


def chunks_name_the_text_they_come_from(case: EngineCase) -> None:
    ranges = {(segment.start, segment.end) for segment in case.segments}
    last = 0
    for chunk in _alone(case).audio:
        assert any(a <= chunk.meta.text_start <= chunk.meta.text_end <= b for a, b in ranges)
        assert chunk.meta.text_start >= last
        last = chunk.meta.text_start


def credit_is_kept_to_the_sample(case: EngineCase) -> None:
    total = _alone(case).samples
    rng = random.Random(5)
    driver = EngineDriver(case)
    heard = driver.open(KEY, credit_samples=0)
    driver.say(KEY)
    granted = 0
    while True:
        driver.drain()
        assert heard.samples <= granted
        if heard.ends:
            break
        assert granted < total + 48_000, "all was granted, not all came"
        amount = rng.choice((1, 7, 479, 480, 4800, 24_000))
        granted += amount
        driver.do(Credit(KEY, amount))
    assert heard.samples == total


def the_last_sample_needs_no_credit_beyond_it(case: EngineCase) -> None:
    expected = _alone(case)
    driver = EngineDriver(case)
    heard = driver.open(KEY, credit_samples=expected.samples)
    driver.say(KEY)
    driver.drain()
    assert heard.content == expected.content


def what_is_said_does_not_depend_on_when_credit_comes(case: EngineCase) -> None:
    expected = _alone(case)
    for grant in (333, 4801):
        driver = EngineDriver(case)
        heard = driver.open(KEY, credit_samples=grant)
        driver.say(KEY)
        while not heard.ends:
            driver.drain()
            driver.do(Credit(KEY, grant))
        assert heard.content == expected.content


def what_is_said_does_not_depend_on_when_text_comes(case: EngineCase) -> None:
    expected = _alone(case)
    driver = EngineDriver(case)
    heard = driver.open(KEY)
    for segment in case.segments:
        driver.say(KEY, [segment], end=False)
        driver.drain()
        assert not heard.ends, "ended before the text did"
    driver.do(EndText(KEY))
    driver.drain()
    assert heard.content == expected.content


def what_is_said_does_not_depend_on_company(case: EngineCase) -> None:
    expected = _alone(case)
    rng = random.Random(11)
    driver = EngineDriver(case)
    crowd = [driver.open(_other(number), credit_samples=rng.randrange(2000)) for number in range(8)]
    texts = {number: list(case.segments) for number in range(8)}
    driver.drain()
    while not all(heard.ends for heard in crowd):
        number = rng.randrange(8)
        if texts[number] and rng.random() < 0.5:
            driver.say(_other(number), [texts[number].pop(0)], end=not texts[number])
        driver.do(Credit(_other(number), rng.randrange(1, 9000)))
        for _ in range(rng.randrange(4)):
            driver.step()
    for heard in crowd:
        assert heard.content == expected.content


def another_engine_says_the_same(case: EngineCase) -> None:
    assert _alone(case).content == _alone(case).content


def hold_stops_all_work_and_release_goes_on_at_the_sample(case: EngineCase) -> None:
    expected = _alone(case)
    for steps_before in (0, 1, 2, 5):
        driver = EngineDriver(case)
        heard = driver.open(KEY)
        driver.say(KEY)
        for _ in range(steps_before):
            driver.step()
        if heard.ends:
            continue
        before = heard.samples
        driver.do(Hold(KEY), Hold(KEY), Credit(KEY, 480))
        assert not driver.engine.has_work
        assert not driver.step()
        assert heard.samples == before
        driver.do(Release(KEY), Release(KEY))
        driver.drain()
        assert heard.content == expected.content


def hold_of_one_leaves_the_others_alone(case: EngineCase) -> None:
    driver = EngineDriver(case)
    held = driver.open(KEY)
    free = driver.open(_other(1))
    driver.say(KEY)
    driver.say(_other(1))
    driver.do(Hold(KEY))
    driver.drain()
    assert not held.audio
    assert [type(end) for end in free.ends] == [Done]


def after_cancel_nothing_comes_and_everything_is_free(case: EngineCase) -> None:
    room = case.make().info.max_utterances
    for steps_before in (0, 1, 3):
        driver = EngineDriver(case)
        for round_number in range(3):
            keys = [UtteranceKey(f"s{n}", round_number) for n in range(room)]
            for key in keys:
                driver.open(key)
            driver.say(keys[0])
            for _ in range(steps_before):
                driver.step()
            seen = {key: (driver.heard[key].samples, len(driver.heard[key].ends)) for key in keys}
            for key in keys:
                driver.do(Cancel(key))
            assert not driver.engine.has_work
            assert not driver.step()
            assert seen == {key: (driver.heard[key].samples, len(driver.heard[key].ends)) for key in keys}
            assert not any(isinstance(end, Failed) for key in keys for end in driver.heard[key].ends)


def a_cancelled_neighbour_changes_nothing(case: EngineCase) -> None:
    expected = _alone(case)
    driver = EngineDriver(case)
    driver.open(_other(1))
    heard = driver.open(KEY)
    driver.say(_other(1))
    driver.say(KEY)
    driver.step()
    driver.step()
    driver.do(Cancel(_other(1)))
    driver.drain()
    assert heard.content == expected.content


def keys_that_are_over_are_ignored(case: EngineCase) -> None:
    driver = EngineDriver(case)
    heard = driver.open(KEY)
    driver.say(KEY)
    driver.drain()
    unknown = UtteranceKey("nobody", 9)
    for key in (KEY, unknown):
        driver.do(Text(key, case.segments[0]), Credit(key, 480), Hold(key), Release(key), EndText(key), Cancel(key))
        assert not driver.engine.has_work
        assert not driver.step()
    assert len(heard.ends) == 1
    assert unknown not in driver.heard


def without_end_of_text_an_utterance_goes_on(case: EngineCase) -> None:
    driver = EngineDriver(case)
    heard = driver.open(KEY)
    driver.say(KEY, end=False)
    driver.drain()
    assert not heard.ends
    assert not driver.engine.has_work
    driver.do(EndText(KEY))
    driver.drain()
    assert heard.ends == [Done(KEY)]


def an_utterance_without_text_is_done(case: EngineCase) -> None:
    for credit_samples in (0, PLENTY_SAMPLES):
        driver = EngineDriver(case)
        heard = driver.open(KEY, credit_samples)
        driver.do(EndText(KEY))
        driver.drain()
        assert not heard.audio
        assert heard.ends == [Done(KEY)]


def text_without_a_sound_ends_with_a_clear_failure(case: EngineCase) -> None:
    driver = EngineDriver(case)
    heard = driver.open(KEY)
    driver.say(KEY, case.unspeakable)
    driver.drain()
    assert not heard.audio
    (end,) = heard.ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.UNSPEAKABLE_TEXT
    assert not any(segment.text in end.error.message for segment in case.unspeakable)


def some_sound_is_enough(case: EngineCase) -> None:
    driver = EngineDriver(case)
    heard = driver.open(KEY)
    shift = case.segments[0].end
    for segment in (case.segments[0], *case.unspeakable):
        if segment is not case.segments[0]:
            spans = tuple(replace(span, start=span.start + shift, end=span.end + shift) for span in segment.spans)
            segment = Segment(segment.index + 1, spans, segment.start + shift, segment.end + shift, segment.boundary)
        driver.do(Text(KEY, segment))
    driver.do(EndText(KEY))
    driver.drain()
    assert heard.audio
    assert heard.ends == [Done(KEY)]


def an_unknown_voice_or_pace_is_refused(case: EngineCase) -> None:
    slowest, fastest = case.make().info.speed_range
    for params, code in (
        (replace(case.params, voice="no such voice"), ErrorCode.UNKNOWN_VOICE),
        (replace(case.params, speed=slowest / 2), ErrorCode.INVALID_REQUEST),
        (replace(case.params, speed=fastest * 2), ErrorCode.INVALID_REQUEST),
        (replace(case.params, speed=float("nan")), ErrorCode.INVALID_REQUEST),
    ):
        driver = EngineDriver(case)
        driver.do(Open(KEY, params, PLENTY_SAMPLES))
        driver.say(KEY)
        driver.drain()
        heard = driver.heard[KEY]
        assert not heard.audio
        assert [end.error.code for end in heard.ends if isinstance(end, Failed)] == [code]


def one_too_many_is_refused_and_the_others_go_on(case: EngineCase) -> None:
    driver = EngineDriver(case)
    room = driver.engine.info.max_utterances
    served = [driver.open(_other(number)) for number in range(room)]
    refused = driver.open(KEY)
    driver.say(KEY)
    driver.say(_other(0))
    for number in range(1, room):
        driver.do(EndText(_other(number)))
    driver.drain()
    (end,) = refused.ends
    assert isinstance(end, Failed)
    assert end.error.retryable
    assert not refused.audio
    assert all([type(e) for e in heard.ends] == [Done] for heard in served)
    assert served[0].samples > 0
    again = driver.open(UtteranceKey("later", 1))
    driver.say(UtteranceKey("later", 1))
    driver.drain()
    assert again.content == served[0].content


def words_are_in_order_inside_the_sound_and_told_in_time(case: EngineCase) -> None:
    heard = _alone(case)
    text_end = case.segments[-1].end
    last_char = last_start = last_end = 0
    for word in heard.words:
        assert last_char <= word.start_char < word.end_char <= text_end
        assert last_start <= word.start_sample <= word.end_sample <= heard.samples
        assert last_end <= word.start_sample
        last_char = word.end_char
        last_start = word.start_sample
        last_end = word.end_sample
    for chunk in heard.audio:
        for word in chunk.words:
            assert chunk.meta.start_sample <= word.start_sample, "told after it began"
    told: set[WordTiming] = set()
    for chunk in heard.audio:
        told.update(chunk.words)
        end = chunk.meta.start_sample + chunk.samples
        assert told >= {word for word in heard.words if word.start_sample < end}, "told after its sound"


def after_close_nothing_is_left(case: EngineCase) -> None:
    driver = EngineDriver(case)
    driver.open(KEY)
    driver.say(KEY)
    driver.step()
    driver.engine.close()
    assert not driver.engine.has_work


def warm_up_leaves_no_trace(case: EngineCase) -> None:
    expected = _alone(case)
    driver = EngineDriver(case)
    driver.engine.warm_up()
    assert not driver.engine.has_work
    heard = driver.open(KEY)
    driver.say(KEY)
    driver.drain()
    assert heard.content == expected.content


ContractCheck = Callable[[EngineCase], None]

CONTRACT: tuple[ContractCheck, ...] = (
    sound_is_in_order_without_gaps_and_done_once,
    chunks_name_the_text_they_come_from,
    credit_is_kept_to_the_sample,
    the_last_sample_needs_no_credit_beyond_it,
    what_is_said_does_not_depend_on_when_credit_comes,
    what_is_said_does_not_depend_on_when_text_comes,
    what_is_said_does_not_depend_on_company,
    another_engine_says_the_same,
    hold_stops_all_work_and_release_goes_on_at_the_sample,
    hold_of_one_leaves_the_others_alone,
    after_cancel_nothing_comes_and_everything_is_free,
    a_cancelled_neighbour_changes_nothing,
    keys_that_are_over_are_ignored,
    without_end_of_text_an_utterance_goes_on,
    an_utterance_without_text_is_done,
    text_without_a_sound_ends_with_a_clear_failure,
    some_sound_is_enough,
    an_unknown_voice_or_pace_is_refused,
    one_too_many_is_refused_and_the_others_go_on,
    words_are_in_order_inside_the_sound_and_told_in_time,
    after_close_nothing_is_left,
    warm_up_leaves_no_trace,
)
