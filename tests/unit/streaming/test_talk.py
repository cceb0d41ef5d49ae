"""What is said, decided from ids alone: the guard, another draw, a clean cut, carried context, word times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.contract.engine_contract import segments
from tests.unit.streaming.engines import KEY, bundle, engine, settings, tokenizer
from tts_worker.engine.cosyvoice.chunks import Chunk, Kind
from tts_worker.engine.streaming.alignment import WordClock, pace_of
from tts_worker.engine.streaming.config import StreamingConfig, TextMode
from tts_worker.engine.streaming.guard import GuardRule, TokenGuard
from tts_worker.engine.streaming.talk import Model, Talk, mixed_seed
from tts_worker.engine.streaming.utterance import plain_segment
from tts_worker.errors import ConfigError
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Boundary, Segment, SynthesisParams

FAMILY = "cosyvoice3"
EOS = 6562
SILENT = 28


@pytest.fixture(scope="module")
def parts():  # type: ignore[no-untyped-def]
    return engine(FAMILY).parts


def talk_of(parts, texts: Sequence[Segment], **changes: object) -> Talk:  # type: ignore[no-untyped-def]
    model = Model(bundle(FAMILY).config, tokenizer(FAMILY), settings(**changes))
    talk = Talk(KEY, SynthesisParams("prompted", seed=5), model)
    voice = parts.book.get("prompted", parts.networks.flow, parts.lanes.flow)
    talk.use(voice, voice.request(None))
    for segment in texts:
        talk.add(segment)
    talk.end()
    return talk


def varied(count: int, seed: int = 0) -> list[int]:
    """Ids without a repetition and without silence."""
    return random.Random(seed).sample(range(2500, 6000), count)


# -- the guard --------------------------------------------------------------------------------------------------------


@examples(deadline=None)
@given(
    st.lists(st.integers(100, 240), max_size=60, unique=True),
    st.lists(st.integers(300, 400), min_size=1, max_size=25, unique=True),
)
def test_a_loop_of_any_period_up_to_a_second_is_found_and_what_came_before_is_kept(
    before: list[int], period: list[int]
) -> None:
    rule = GuardRule()
    guard = TokenGuard(frozenset())
    trip = None
    seen = 0
    for token in [*before, *(period * (rule.loop_tokens + 2))]:
        seen += 1
        trip = guard.see(token)
        if trip is not None:
            break
    assert trip is not None
    assert trip.reason == "token_loop"
    assert trip.keep_tokens == len(before) + len(period)
    assert seen == len(before) + len(period) + rule.loop_tokens


@examples(deadline=None)
@given(st.lists(st.integers(0, 6560), max_size=200, unique=True))
def test_speech_without_a_repetition_is_never_stopped(tokens: list[int]) -> None:
    guard = TokenGuard(frozenset({SILENT}))
    assert not any(guard.see(token) for token in tokens)


def test_silence_that_does_not_end_is_found() -> None:
    guard = TokenGuard(frozenset({SILENT, 29}))
    verdicts = [guard.see(token) for token in [*varied(30), *[SILENT, 29] * 50]]
    trip = next(verdict for verdict in verdicts if verdict)
    assert (trip.reason, trip.keep_tokens) == ("silence", len(varied(30)))
    assert verdicts.index(trip) == len(varied(30)) + GuardRule().silence_tokens - 1


# -- another draw, or a clean cut -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonsense", [[-1], [6700], [SILENT] * 75, [7, *[SILENT] * 75]])
def test_nonsense_that_nobody_heard_is_drawn_again_with_another_seed(parts, nonsense: list[int]) -> None:  # type: ignore[no-untyped-def]
    talk = talk_of(parts, [plain_segment("Hello world and you, that it is")])
    talk.begin_run()
    seeds = [talk.run_seed]
    for _ in range(settings().retries):
        talk.take(nonsense)
        assert talk.run is not None
        assert talk.passages[-1].tokens == []
        seeds.append(talk.run_seed)
    assert len(set(seeds)) == 3
    talk.take([*varied(40), EOS])
    assert talk.truncated is None
    assert talk.passages[-1].tokens == varied(40)
    assert talk.passages[-1].ended


def test_nonsense_three_times_is_the_end(parts) -> None:  # type: ignore[no-untyped-def]
    talk = talk_of(parts, [plain_segment("Hello")])
    talk.begin_run()
    for _ in range(settings().retries + 1):
        talk.take([-1])
    assert talk.truncated == "broken_scores"
    assert talk.run is None
    assert talk.passages[-1].ended
    assert not talk.passages[-1].tokens


def test_nonsense_after_something_was_heard_is_cut_where_it_begins(parts) -> None:  # type: ignore[no-untyped-def]
    good = varied(100)
    talk = talk_of(parts, [plain_segment("Hello world and you, that it is of the world")])
    talk.begin_run()
    talk.take([*good, *[11, 12, 13] * 30])
    assert talk.truncated == "token_loop"
    tokens = talk.passages[-1].tokens
    heard = 8 + 25 * ((len(good) + 3 + 50 - 3 - 8) // 25)  # boundaries with their look-ahead when the loop was seen
    assert tokens[: len(good)] == good
    assert len(tokens) == max(len(good) + 3, heard + 3)


@pytest.mark.parametrize("first", [8, 9, 10, 11, 12])
def test_what_a_chunk_looked_ahead_to_is_not_drawn_again(parts, first: int) -> None:  # type: ignore[no-untyped-def]
    """Sound of the first eight tokens is due with eleven, whether or not it was made by then."""
    talk = talk_of(parts, segments(("Hello, ", Boundary.CLAUSE), ("you.", Boundary.END)))
    talk.begin_run()
    talk.take([*varied(first), EOS])
    talk.begin_run()
    talk.take([*varied(4, seed=1), -1])
    if first < 11:
        assert talk.truncated == "broken_scores"
        assert talk.passages[-1].tokens == [*varied(first), *varied(4, seed=1)]
    else:
        assert talk.truncated is None
        assert talk.passages[-1].tokens == varied(first)


def test_a_run_that_never_ends_is_ended(parts) -> None:  # type: ignore[no-untyped-def]
    talk = talk_of(parts, [plain_segment("it")])
    talk.begin_run()
    assert talk.run is not None
    most = talk.run.budget
    talk.take(varied(most + 10, 3)[:most])
    assert talk.truncated == "no_end_of_speech"
    assert len(talk.passages[-1].tokens) == most


# -- context ----------------------------------------------------------------------------------------------------------


def test_a_clause_continues_those_before_it(parts) -> None:  # type: ignore[no-untyped-def]
    talk = talk_of(parts, segments(("Hello, ", Boundary.CLAUSE), ("world.", Boundary.END)))
    talk.begin_run()
    assert talk.run is not None
    first = list(talk.run.unfed)
    talk.take([*varied(12), EOS])
    talk.begin_run()
    items = talk.run.unfed
    ids = tokenizer(FAMILY)
    prompt = len(talk.request.prompt_text)
    text = [i for kind, i in items if kind is Kind.TEXT]
    speech = [i for kind, i in items if kind is Kind.SPEECH]
    assert text[prompt:] == [*ids.encode("Hello,"), *ids.encode(" world.")]
    assert speech == [*talk.request.lm_prompt, *varied(12)]
    assert items[: 1 + prompt] == first[: 1 + prompt]
    assert len(talk.passages) == 1, "one breath, one stretch of sound"


def test_old_context_is_forgotten(parts) -> None:  # type: ignore[no-untyped-def]
    talk = talk_of(parts, segments(*((f"it {n}.", Boundary.SENTENCE) for n in range(12))), context_tokens=30)
    carried = []
    for n in range(12):
        talk.begin_run()
        assert talk.run is not None
        carried.append(sum(kind is Kind.SPEECH for kind, _ in talk.run.unfed) - len(talk.request.lm_prompt))
        talk.take([*varied(10, n)[:10], EOS])
        talk.passages.popleft()
    assert carried[0] == 0
    assert max(carried) <= 30
    assert carried[-1] >= 15


def test_interleaved_text_without_stops_is_closed_in_time(parts) -> None:  # type: ignore[no-untyped-def]
    words = segments(*(("hello ", Boundary.WORD) for _ in range(400)))
    talk = talk_of(parts, words, text_mode=TextMode.INTERLEAVED)
    runs = 0
    while talk.may_begin:
        talk.begin_run()
        runs += 1
        while talk.run is not None:
            last = talk.run.special == EOS and len(talk.drawn) > 150
            talk.take([EOS if last else varied(500)[len(talk.drawn)]])
            assert len(talk.drawn) < 400
        talk.passages.popleft()
    assert runs > 2
    assert talk.truncated is None


def test_seeds_of_runs_differ_and_stay_in_range() -> None:
    numbers = product((0, 1, (1 << 63) - 1), range(4), range(3))
    seeds = {mixed_seed(seed, run, attempt) for seed, run, attempt in numbers}
    assert len(seeds) == 3 * 4 * 3
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert mixed_seed(7, 0, 0) == 7


@pytest.mark.parametrize("name", ["max_utterances", "first_tokens", "stride_chunks", "pages", "lm_tokens", "retries"])
def test_sizes_that_cannot_work_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        StreamingConfig(**{name: -1})


# -- word times -------------------------------------------------------------------------------------------------------


@examples(deadline=None)
@given(
    texts=st.lists(st.sampled_from(["Hello world.", "it is 5, and", "a", "very long words"]), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 120), min_size=4, max_size=4),
    pace=st.floats(0.7, 4.0),
)
@example(
    texts=["Hello world."] * 2 + ["very long words"], lengths=[97, 120, 62, 1], pace=1.0
)  # ends at 279.00000000000006
def test_words_come_in_order_in_time_and_all_of_them(texts: list[str], lengths: list[int], pace: float) -> None:
    """Whatever the pace was taken for: no word later than its sound, none before what was told, each once."""
    clock = WordClock(pace)
    total = 0
    expected = 0
    ends = []
    for text, length in zip(texts, lengths, strict=False):
        words = spoken_words(plain_segment(text))
        clock.begin(total)
        clock.add(words, total)
        total += length
        expected += len(words)
        clock.finish(total)
        ends.append(total)
    boundaries = [*range(8, max(9, total - 27), 25)]
    chunks = [Chunk(a, b, b + 3, False) for a, b in zip([0, *boundaries], boundaries, strict=False) if b + 3 <= total]
    last = chunks[-1].end if chunks else 0
    placed_at = 0.0
    told = 0
    for chunk in [*chunks, Chunk(last, total, total, True)]:
        for word in clock.take(chunk.end, chunk.known, chunk.final):
            assert chunk.begin <= word.start <= word.end <= chunk.known
            assert word.start >= placed_at
            placed_at = word.end
            told = told + 1
    assert told == expected


def test_the_pace_of_a_prompt_is_taken_from_it() -> None:
    assert pace_of("hello", 12) == pytest.approx(2.0)
    assert pace_of("", 12) == pace_of("hello", 0) == pytest.approx(25 / 15)
    assert pace_of("hello", 10**6) == 4.0
