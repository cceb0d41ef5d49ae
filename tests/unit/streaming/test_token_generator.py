"""Token generation from ids alone: guard, retries, truncation, context, word times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.contract.engine_contract import segments
from tests.unit.streaming.engines import KEY, bundle, engine, settings, tokenizer
from tts_worker.engine.cosyvoice.audio.chunks import Chunk
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig, TextMode
from tts_worker.engine.cosyvoice.networks.lm_inputs import Kind
from tts_worker.engine.cosyvoice.token_generator import EngineSpec, TokenGenerator, derive_seed
from tts_worker.engine.cosyvoice.tokens.alignment import WordAligner, estimate_pace, estimate_tokens, text_weight
from tts_worker.engine.cosyvoice.tokens.guard import GuardLimits, TokenGuard
from tts_worker.engine.cosyvoice.tokens.respelling import Respelling
from tts_worker.engine.cosyvoice.voices.speaker import style_instruction
from tts_worker.errors import ConfigError
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Boundary, Expression, Segment, Span, SynthesisParams

FAMILY = "cosyvoice3"
EOS = 6562
SILENT = 28


@pytest.fixture(scope="module")
def components():  # type: ignore[no-untyped-def]
    return engine(FAMILY).components


def generator_for(  # type: ignore[no-untyped-def]
    components, texts: Sequence[Segment], *, limit: int | None = None, **changes: object
) -> TokenGenerator:
    config = replace(bundle(FAMILY).config, context_tokens=limit)
    model = EngineSpec(config, tokenizer(FAMILY), settings(**changes))
    generator = TokenGenerator(KEY, SynthesisParams("prompted", seed=5), model)
    voice = components.voice_cache.acquire("prompted")
    generator.set_voice(voice, voice.request(None))
    for segment in texts:
        generator.add_text(segment)
    generator.end_text()
    return generator


def distinct_ids(count: int, seed: int = 0) -> list[int]:
    """Return distinct ids without silence."""
    return random.Random(seed).sample(range(2500, 6000), count)


# -- guard ------------------------------------------------------------------------------------------------------------


@examples(deadline=None)
@given(
    st.lists(st.integers(100, 240), max_size=60, unique=True),
    st.lists(st.integers(300, 400), min_size=1, max_size=25, unique=True),
)
def test_token_loop_of_any_period_is_detected(before: list[int], period: list[int]) -> None:
    rule = GuardLimits()
    guard = TokenGuard(frozenset())
    violation = None
    seen = 0
    for token in [*before, *(period * (rule.loop_tokens + 2))]:
        seen += 1
        violation = guard.check(token)
        if violation is not None:
            break
    assert violation is not None
    assert violation.reason == "token_loop"
    assert violation.valid_tokens == len(before) + len(period)
    assert seen == len(before) + len(period) + rule.loop_tokens


@examples(deadline=None)
@given(st.lists(st.integers(0, 6560), max_size=200, unique=True))
def test_tokens_without_repetition_pass_the_guard(tokens: list[int]) -> None:
    guard = TokenGuard(frozenset({SILENT}))
    assert not any(guard.check(token) for token in tokens)


def test_endless_silence_is_detected() -> None:
    guard = TokenGuard(frozenset({SILENT, 29}))
    verdicts = [guard.check(token) for token in [*distinct_ids(30), *[SILENT, 29] * 50]]
    violation = next(verdict for verdict in verdicts if verdict)
    assert (violation.reason, violation.valid_tokens) == ("silence", len(distinct_ids(30)))
    assert verdicts.index(violation) == len(distinct_ids(30)) + GuardLimits().silence_tokens - 1


# -- retries and truncation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("invalid_ids", [[-1], [6700], [SILENT] * 75, [7, *[SILENT] * 75]])
def test_uncommitted_invalid_run_is_retried_with_new_seed(components, invalid_ids: list[int]) -> None:  # type: ignore[no-untyped-def]
    generator = generator_for(components, [Segment.whole("Hello world and you, that it is")])
    generator.begin_run()
    assert generator.run is not None
    seeds = [generator.run.seed]
    for _ in range(settings().retries):
        generator.process_ids(invalid_ids)
        assert generator.run is not None
        assert generator.audio_segments[-1].tokens == []
        seeds.append(generator.run.seed)
    assert len(set(seeds)) == 3
    generator.process_ids([*distinct_ids(40), EOS])
    assert generator.truncated is None
    assert generator.audio_segments[-1].tokens == distinct_ids(40)
    assert generator.audio_segments[-1].is_complete


def test_retries_are_limited(components) -> None:  # type: ignore[no-untyped-def]
    generator = generator_for(components, [Segment.whole("Hello")])
    generator.begin_run()
    for _ in range(settings().retries + 1):
        generator.process_ids([-1])
    assert generator.truncated == "broken_scores"
    assert generator.run is None
    assert generator.audio_segments[-1].is_complete
    assert not generator.audio_segments[-1].tokens


def test_committed_invalid_run_is_truncated(components) -> None:  # type: ignore[no-untyped-def]
    good = distinct_ids(100)
    generator = generator_for(components, [Segment.whole("Hello world and you, that it is of the world")])
    generator.begin_run()
    generator.process_ids([*good, *[11, 12, 13] * 30])
    assert generator.truncated == "token_loop"
    tokens = generator.audio_segments[-1].tokens
    committed = 8 + 25 * ((len(good) + 3 + 50 - 3 - 8) // 25)  # chunks with lookahead when the loop was detected
    assert tokens[: len(good)] == good
    assert len(tokens) == max(len(good) + 3, committed + 3)


@pytest.mark.parametrize("first", [8, 9, 10, 11, 12])
def test_lookahead_tokens_are_committed(components, first: int) -> None:  # type: ignore[no-untyped-def]
    """The first chunk of 8 tokens is due with 11, whether or not it is rendered by then."""
    generator = generator_for(components, segments(("Hello, ", Boundary.CLAUSE), ("you.", Boundary.END)))
    generator.begin_run()
    generator.process_ids([*distinct_ids(first), EOS])
    generator.begin_run()
    generator.process_ids([*distinct_ids(4, seed=1), -1])
    if first < 11:
        assert generator.truncated == "broken_scores"
        assert generator.audio_segments[-1].tokens == [*distinct_ids(first), *distinct_ids(4, seed=1)]
    else:
        assert generator.truncated is None
        assert generator.audio_segments[-1].tokens == distinct_ids(first)


def test_run_without_end_is_truncated(components) -> None:  # type: ignore[no-untyped-def]
    generator = generator_for(components, [Segment.whole("it")])
    generator.begin_run()
    assert generator.run is not None
    most = generator.run.budget
    generator.process_ids(distinct_ids(most + 10, 3)[:most])
    assert generator.truncated == "no_end_of_speech"
    assert len(generator.audio_segments[-1].tokens) == most


# -- context ----------------------------------------------------------------------------------------------------------


def test_clause_continues_previous_clauses(components) -> None:  # type: ignore[no-untyped-def]
    generator = generator_for(components, segments(("Hello, ", Boundary.CLAUSE), ("world.", Boundary.END)))
    generator.begin_run()
    assert generator.run is not None
    first = list(generator.run.pending_items)
    generator.process_ids([*distinct_ids(12), EOS])
    generator.begin_run()
    items = generator.run.pending_items
    ids = tokenizer(FAMILY)
    prompt = len(generator.request.prompt_text)
    text = [i for kind, i in items if kind is Kind.TEXT]
    speech = [i for kind, i in items if kind is Kind.SPEECH]
    assert text[prompt:] == [*ids.encode("Hello,"), *ids.encode(" world.")]
    assert speech == [*generator.request.lm_prompt, *distinct_ids(12)]
    assert items[: 1 + prompt] == first[: 1 + prompt]
    assert len(generator.audio_segments) == 1, "both clauses share one audio segment"


def test_old_context_is_dropped(components) -> None:  # type: ignore[no-untyped-def]
    generator = generator_for(
        components, segments(*((f"it {n}.", Boundary.SENTENCE) for n in range(12))), context_tokens=30
    )
    carried = []
    for n in range(12):
        generator.begin_run()
        assert generator.run is not None
        carried.append(
            sum(kind is Kind.SPEECH for kind, _ in generator.run.pending_items) - len(generator.request.lm_prompt)
        )
        generator.process_ids([*distinct_ids(10, n)[:10], EOS])
        generator.audio_segments.popleft()
    assert carried[0] == 0
    assert max(carried) <= 30
    assert carried[-1] >= 15


@pytest.mark.parametrize(("limit", "setting"), [(0, 250), (250, 0), (None, 0)])
def test_clause_without_context_is_spoken_as_if_alone(components, limit: int | None, setting: int) -> None:  # type: ignore[no-untyped-def]
    texts = segments(("Hello,", Boundary.CLAUSE), (" world.", Boundary.SENTENCE))
    generator = generator_for(components, texts, limit=limit, context_tokens=setting)
    alone = generator_for(components, segments(("world.", Boundary.SENTENCE)))
    generator.begin_run()
    generator.process_ids([*distinct_ids(12), EOS])
    for each in (generator, alone):
        each.begin_run()
    assert generator.run is not None
    assert alone.run is not None
    assert generator.run.pending_items == alone.run.pending_items


def test_unpunctuated_interleaved_text_is_split(components) -> None:  # type: ignore[no-untyped-def]
    words = segments(*(("hello ", Boundary.WORD) for _ in range(400)))
    generator = generator_for(components, words, text_mode=TextMode.INTERLEAVED)
    runs = 0
    while generator.can_begin_run:
        generator.begin_run()
        runs += 1
        while (run := generator.run) is not None:
            last = run.special == EOS and len(run.drawn) > 150
            generator.process_ids([EOS if last else distinct_ids(500)[len(run.drawn)]])
            assert len(run.drawn) < 400
        generator.audio_segments.popleft()
    assert runs > 2
    assert generator.truncated is None


def test_run_seeds_differ_and_stay_in_range() -> None:
    numbers = product((0, 1, (1 << 63) - 1), range(4), range(3))
    seeds = {derive_seed(seed, run, attempt) for seed, run, attempt in numbers}
    assert len(seeds) == 3 * 4 * 3
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert derive_seed(7, 0, 0) == 7


@pytest.mark.parametrize("name", ["max_utterances", "first_tokens", "stride_chunks", "pages", "lm_tokens", "retries"])
def test_invalid_sizes_are_refused(name: str) -> None:
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
def test_words_are_reported_once_in_order_and_in_time(texts: list[str], lengths: list[int], pace: float) -> None:
    """At any pace: no word ends after its audio, none starts before reported ones, each is reported once."""
    aligner = WordAligner(pace)
    total = 0
    expected = 0
    ends = []
    for text, length in zip(texts, lengths, strict=False):
        words = spoken_words(Segment.whole(text))
        aligner.start_run(total)
        aligner.add_words(words, total)
        total += length
        expected += len(words)
        aligner.end_run(total)
        ends.append(total)
    boundaries = [*range(8, max(9, total - 27), 25)]
    chunks = [Chunk(a, b, b + 3, False) for a, b in zip([0, *boundaries], boundaries, strict=False) if b + 3 <= total]
    last = chunks[-1].end if chunks else 0
    previous_end = 0.0
    reported = 0
    for chunk in [*chunks, Chunk(last, total, total, True)]:
        for word in aligner.take_words(chunk.end, chunk.known, chunk.final):
            assert chunk.begin <= word.start <= word.end <= chunk.known
            assert word.start >= previous_end
            previous_end = word.end
            reported = reported + 1
    assert reported == expected


def test_pace_is_estimated_from_the_prompt() -> None:
    assert estimate_pace("hello", 12) == pytest.approx(2.0)
    assert estimate_pace("", 12) == estimate_pace("hello", 0) == pytest.approx(25 / 15)
    assert estimate_pace("hello", 10**6) == 4.0
    assert estimate_pace("", 12, 1.2) == 1.2


def test_pace_of_a_prompt_is_that_of_the_same_run() -> None:
    """Pauses count in both: 40 tokens for the text give its words 40 tokens."""
    text = "Hello there, it is late. Good night!"
    pace = estimate_pace(text, 40)
    assert estimate_tokens(spoken_words(Segment.whole(text)), pace) == pytest.approx(40)


def test_next_audio_segment_speaks_at_the_learned_pace(components) -> None:  # type: ignore[no-untyped-def]
    """Whatever was reported of the earlier ones by then."""
    texts = segments(("One two three four.", Boundary.SENTENCE), (" Five six seven eight.", Boundary.END))
    paces = []
    for reported in (False, True):
        generator = generator_for(components, texts)
        generator.begin_run()
        generator.process_ids([*distinct_ids(60), EOS])
        first = generator.audio_segments[0]
        if reported:
            first.aligner.take_words(60, 60, True)
        generator.begin_run()
        paces.append(generator.audio_segments[-1].aligner.pace)
    spoken = text_weight("One two three four.")
    assert paces == [pytest.approx((generator.voice.pace + 60 / spoken) / 2)] * 2


def test_words_take_as_long_as_what_the_model_reads(components) -> None:  # type: ignore[no-untyped-def]
    """Phonemes tell more about durations than letters do, where a bundle respells words."""
    respelled = copy(tokenizer(FAMILY))
    respelled._respell = Respelling({"though": "ðO", "axis": "ˈæksˌɪs"})
    generator = generator_for(components, segments(("though axis", Boundary.END)))
    generator._spec = replace(generator._spec, tokenizer=respelled)
    generator.begin_run()
    generator.process_ids([*distinct_ids(33), EOS])
    first, second = generator.audio_segments[0].aligner.take_words(33, 33, True)
    assert (first.end, second.end) == (pytest.approx(9), pytest.approx(33))
    assert estimate_pace(respelled.spell("though axis"), 33) == pytest.approx(3)


def test_style_of_a_segment_is_the_prompt_of_its_run(components) -> None:  # type: ignore[no-untyped-def]
    """The model's own instruction speaks a styled segment; what another style has said is no context of it."""
    happy = Expression(style="cheerful")
    texts = [
        Segment(0, (Span("First part", 0, 10),), 0, 10, Boundary.FORCED),
        Segment(1, (Span("second part", 10, 21),), 10, 21, Boundary.FORCED, expressions=((10, happy),)),
        Segment(2, (Span("third part", 21, 31),), 21, 31, Boundary.END),
    ]
    generator = generator_for(components, texts)
    voice = components.voice_cache.acquire("prompted")
    plain, styled = voice.request(None), voice.request("happy")
    assert plain.prompt_text != styled.prompt_text
    requests = []
    for number in range(3):
        generator.begin_run()
        requests.append(generator.request.prompt_text)
        run = generator.run
        assert run is not None
        before = run.pending_items
        assert sum(kind is Kind.SPEECH for kind, _ in before) == len(generator.request.lm_prompt)
        generator.process_ids([*distinct_ids(30, number), EOS])
        assert generator.run is None
    assert requests == [plain.prompt_text, styled.prompt_text, plain.prompt_text]
    assert len(generator.audio_segments) == 1, "the audio goes on where the style changes"


def test_session_style_applies_where_the_text_has_none(components) -> None:  # type: ignore[no-untyped-def]
    sad = Expression(style="sad")
    texts = [Segment(0, (Span("Well then", 0, 9),), 0, 9, Boundary.END)]
    generator = generator_for(components, texts)
    generator.expression = sad
    generator.begin_run()
    voice = components.voice_cache.acquire("prompted")
    assert generator.request.prompt_text == voice.request("sad").prompt_text


def test_unknown_style_is_described() -> None:
    assert style_instruction("very happily") == "happy"
    assert style_instruction("like a pirate") == "Speak in this style: like a pirate."
