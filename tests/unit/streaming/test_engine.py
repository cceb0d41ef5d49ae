"""Streaming equals offline, a crowd equals its members alone, and a chunk costs the same wherever it stands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.streaming.engines import (
    FAMILIES,
    KEY,
    PROMPTED,
    bundle,
    engine,
    hear,
    networks,
    settings,
    speak,
    tokenizer,
    voice,
)
from tts_worker.audio.pcm import to_pcm
from tts_worker.engine.cosyvoice.chunks import trimmed_prompt
from tts_worker.engine.cosyvoice.enrol import Speaker
from tts_worker.engine.cosyvoice.request import Request
from tts_worker.engine.offline.pipeline import OfflinePipeline
from tts_worker.engine.streaming.config import TextMode
from tts_worker.engine.streaming.engine import CosyVoiceEngine
from tts_worker.engine.streaming.utterance import plain_segment
from tts_worker.text.pipeline import TextOptions, TextPipeline
from tts_worker.types import (
    Audio,
    Boundary,
    Cancel,
    Credit,
    Done,
    EndText,
    Hold,
    Open,
    Release,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)

families = pytest.mark.parametrize("family", FAMILIES)


def samples(pcm: bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.frombuffer(pcm, "<i2").astype(np.int64)


def assert_alike(a: bytes, b: bytes) -> None:
    """The same sound but for the rounding of float32, which the vocoder makes about a hundred times larger."""
    assert len(a) == len(b)
    difference = samples(a) - samples(b)
    assert np.abs(difference).max(initial=0) <= 40
    assert np.square(difference).sum() <= len(difference)


def request_of(family: str, text: str, first_tokens: int) -> Request:
    """What the engine makes of ``text`` with the prompted voice, by hand."""
    config = bundle(family).config
    request = Speaker(voice(family), config, tokenizer(family)).request(text)
    drop = trimmed_prompt(len(request.flow_prompt), config.flow.chunk_tokens, first_tokens)
    return replace(request, flow_prompt=request.flow_prompt[drop:], prompt_mel=request.prompt_mel[2 * drop :])


@families
def test_streaming_says_what_the_offline_path_says(family: str) -> None:
    text = "Hello, you and the world of it."
    pipeline = OfflinePipeline(networks(family))
    expected = pipeline.speak(request_of(family, text, settings().first_tokens), seed=PROMPTED.seed, stream=True)
    sound = torch.cat([chunk.samples for chunk in expected]).numpy()

    heard = speak(engine(family), (plain_segment(text),))

    assert heard.ends == [Done(KEY)]
    assert len(sound) > 24_000
    assert_alike(heard.pcm, to_pcm(sound))


@families
def test_interleaved_text_is_spoken_as_offline(family: str) -> None:
    words = ("Hello", " world", " and", " you")
    # goes on to the limit: offline there is no least
    loaded = networks(family, -50.0)
    ids = tokenizer(family)
    request = request_of(family, "", settings().first_tokens)
    pipeline = OfflinePipeline(loaded)
    machine = pipeline.interleave(request, ids.end_of_prompt_id if family == "cosyvoice3" else None)
    text = (i for word in words for i in ids.encode(word))
    expected = pipeline.speak(request, text=(machine, text), seed=PROMPTED.seed, stream=True)
    sound = torch.cat([chunk.samples for chunk in expected]).numpy()

    subject = engine(family, settings(text_mode=TextMode.INTERLEAVED), loaded=loaded)
    heard = speak(subject, segments(*((word, Boundary.WORD) for word in words)))

    assert heard.ends == [Done(KEY, "no_end_of_speech")]
    fade_samples = 480
    assert_alike(heard.pcm[: -2 * fade_samples], to_pcm(sound[:-fade_samples]))


@pytest.mark.parametrize(
    ("family", "mode", "crowd"),
    [("cosyvoice3", TextMode.CLAUSE, 64), ("cosyvoice2", TextMode.INTERLEAVED, 16)],
)
def test_a_crowd_in_batches_says_what_each_says_alone(family: str, mode: TextMode, crowd: int) -> None:
    config = settings(
        max_utterances=crowd, pages=4 * crowd + 20, text_mode=mode, decode_batch=crowd, render_batch=8, checked=False
    )
    texts = [("Hello", " you"), ("it", " is"), ("Yes",), ("and the", " world", " of it")]
    params = [replace(PROMPTED, seed=n, voice=("prompted", "tiny_spk")[n % 2]) for n in range(crowd)]

    def said(n: int) -> tuple[Segment, ...]:
        parts = texts[n % len(texts)]
        ends = [Boundary.CLAUSE if mode is TextMode.CLAUSE else Boundary.WORD] * (len(parts) - 1) + [Boundary.END]
        return segments(*zip(parts, ends, strict=True))

    subject = engine(family, config)
    keys = [UtteranceKey(f"s{n}", n) for n in range(crowd)]
    heard: dict[UtteranceKey, EngineOutput] = {}
    for n, key in enumerate(keys):
        subject.handle(Open(key, params[n], PLENTY_SAMPLES))
    for turn in range(3):  # text comes in turns, ends at different times
        for n, key in enumerate(keys):
            for command in [Text(key, segment) for segment in said(n)[turn : turn + 1]]:
                subject.handle(command)
            if turn == len(said(n)) - 1:
                subject.handle(EndText(key))
        for event in subject.step(turn / 100):
            assert isinstance(event, Audio)
            heard.setdefault(event.key, EngineOutput()).audio.append(event)
    hear(subject, heard)

    alone = engine(family, settings(text_mode=mode))
    for n in range(0, crowd, 9):
        expected = speak(alone, said(n), params[n], UtteranceKey("alone", n))
        assert_alike(heard[keys[n]].pcm, expected.pcm)
        assert heard[keys[n]].words == expected.words
    assert [end for key in keys for end in heard[key].ends if not isinstance(end, Done)] == []
    assert subject.active_utterances == 0


def pieces_of(text: str, cuts: list[int], *, by_word: bool) -> list[list[Segment]]:
    """The segments of ``text``, as they come when it is cut at ``cuts``."""
    pipeline = TextPipeline(TextOptions(by_word=by_word))
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    come = [pipeline.feed(text[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    return [*come, pipeline.end()]


@pytest.fixture(scope="module")
def talkers() -> dict[TextMode, CosyVoiceEngine]:
    return {mode: engine("cosyvoice3", settings(text_mode=mode)) for mode in TextMode}


SENTENCES = "Yes, it is 5. And you, the world: hello."


@examples(deadline=None, max_examples=5)
@given(
    mode=st.sampled_from(TextMode),
    cuts=st.lists(st.integers(0, len(SENTENCES)), max_size=6),
    steps=st.lists(st.integers(0, 12), min_size=9, max_size=9),
)
def test_what_is_said_does_not_depend_on_how_the_text_was_cut(
    talkers: dict[TextMode, CosyVoiceEngine], mode: TextMode, cuts: list[int], steps: list[int]
) -> None:
    subject = talkers[mode]
    by_word = mode is TextMode.INTERLEAVED
    whole = tuple(segment for come in pieces_of(SENTENCES, [], by_word=by_word) for segment in come)
    expected = speak(subject, whole)

    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    heard = {KEY: EngineOutput()}
    for come, wait in zip(pieces_of(SENTENCES, cuts, by_word=by_word), steps, strict=False):
        for segment in come:
            subject.handle(Text(KEY, segment))
        for _ in range(wait):
            for event in subject.step(0.0):
                assert isinstance(event, Audio)
                heard[KEY].audio.append(event)
    subject.handle(EndText(KEY))
    hear(subject, heard)

    assert heard[KEY].content == expected.content


@families
def test_every_chunk_costs_the_same(family: str) -> None:
    """Frames computed, which is what time is made of, from the second chunk to the last but one."""
    tokens = 250
    eos = bundle(family).config.lm.eos_id
    subject = engine(family, script=lambda key, run: [*(i * 31 % 6561 for i in range(tokens)), eos])
    parts = subject.components
    costs = []
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, plain_segment("Hello")))
    subject.handle(EndText(KEY))
    before = (0, 0)
    while subject.has_work:
        for event in subject.step(0.0):
            if isinstance(event, Audio) and event.meta.wall_ms:
                now = (parts.renderer.flow_frames, parts.renderer.vocoder_frames)
                costs.append((now[0] - before[0], now[1] - before[1]))
                before = now
    assert len(costs) == 11
    assert len(set(costs[2:-1])) == 1
    assert costs[2][0] == 50  # one chunk of the trained mask, whatever came before


@families
def test_the_first_sound_needs_few_tokens(family: str) -> None:
    subject = engine(family, settings(smooth_start=False), script=lambda key, run: [5] * 200)
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, plain_segment("Hello")))
    while not any(isinstance(event, Audio) for event in subject.step(0.0)):
        assert subject.has_work
    assert subject.timings.tokens == settings().first_tokens + bundle(family).config.flow.lookahead_tokens
    subject.handle(Cancel(KEY))


def test_a_voice_is_prepared_once_and_shared() -> None:
    subject = engine("cosyvoice3")
    # 42 tokens are left of 60; the first 25 never change
    pool = subject.components.pool
    prompt_pages = 1
    free = pool.free_pages
    speak(subject, (plain_segment("it"),))
    assert pool.free_pages == free - prompt_pages
    computed = subject.components.renderer.flow_frames
    speak(subject, (plain_segment("it"),), key=UtteranceKey("again", 1))
    assert pool.free_pages == free - prompt_pages
    assert subject.components.renderer.flow_frames == 2 * computed


class Held:
    """What an engine has in use."""

    def __init__(self, subject: CosyVoiceEngine) -> None:
        parts = subject.components
        voices = parts.voice_cache.prepared_voices
        self.now = (
            subject.active_utterances,
            parts.decoder.free_slots,
            parts.pool.free_pages,
            parts.pool.free_slots,
            voices,
        )


@examples(deadline=None, max_examples=8)
@given(
    mode=st.sampled_from(TextMode),
    steps=st.lists(st.integers(0, 25), min_size=4, max_size=4),
    holds=st.sets(st.integers(0, 3)),
    credit=st.sampled_from([0, 480, 30_000, PLENTY_SAMPLES]),
)
def test_a_cancel_at_any_point_frees_everything(
    talkers: dict[TextMode, CosyVoiceEngine], mode: TextMode, steps: list[int], holds: set[int], credit: int
) -> None:
    subject = talkers[mode]
    speak(subject, segments(("it ", Boundary.WORD), ("is.", Boundary.END)))  # the voice is there
    free = Held(subject).now
    keys = [UtteranceKey(f"s{n}", n) for n in range(4)]
    for key in keys:
        subject.handle(Open(key, PROMPTED, credit))
        subject.handle(Text(key, *segments(("Hello world and ", Boundary.WORD))))
    for n, (key, wait) in enumerate(zip(keys, steps, strict=True)):
        for _ in range(wait):
            subject.step(0.0)
        subject.handle(Hold(key) if n in holds else Credit(key, 480))
        subject.handle(Cancel(key))
    assert Held(subject).now == free
    assert not subject.has_work
    assert not subject.step(0.0)


def test_a_pause_at_any_step_changes_no_byte() -> None:
    subject = engine("cosyvoice2")
    text = segments(("Hello, ", Boundary.CLAUSE), ("you.", Boundary.END))
    expected = speak(subject, text)
    subject.handle(Open(KEY, PROMPTED, 9_000))
    for segment in text:
        subject.handle(Text(KEY, segment))
    subject.handle(EndText(KEY))
    heard = EngineOutput()
    while not heard.ends:
        subject.handle(Hold(KEY))
        assert not subject.has_work, "a held utterance asks for nothing"
        assert not subject.step(0.0)
        subject.handle(Release(KEY))
        subject.handle(Credit(KEY, 2_400))
        for event in subject.step(0.0):
            if isinstance(event, Audio):
                heard.audio.append(event)
            else:
                assert isinstance(event, Done)
                heard.ends.append(event)
    assert heard.pcm == expected.pcm


@families
@pytest.mark.parametrize("speed", [0.5, 1.7])
def test_another_pace_has_the_length_it_should_have(family: str, speed: float) -> None:
    tokens = 70
    eos = bundle(family).config.lm.eos_id
    subject = engine(family, script=lambda key, run: [*range(100, 100 + tokens), eos])
    heard = speak(subject, (plain_segment("Hello world and you"),), replace(PROMPTED, speed=speed))
    assert heard.samples == int(2 * tokens / speed) * 480
    assert [word.start_char for word in heard.words] == [0, 6, 12, 16]
    assert heard.words[-1].end_sample <= heard.samples


def test_a_clock_that_jumps_changes_nothing() -> None:
    text = segments(("Hello, ", Boundary.CLAUSE), ("you.", Boundary.END))
    expected = speak(engine("cosyvoice3"), text)
    subject = engine("cosyvoice3")
    clock = [0.0, 1e9, -1e9, 5.0, -0.5, 1e-9]
    keys = [UtteranceKey("s", n) for n in range(3)]
    heard = {key: EngineOutput() for key in keys}
    for key in keys:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        for segment in text:
            subject.handle(Text(key, segment))
        subject.handle(EndText(key))
    for step in range(1000):
        for event in subject.step(clock[step % len(clock)]):
            if isinstance(event, Audio):
                heard[event.key].audio.append(event)
            else:
                heard[event.key].ends.append(event)
        if not subject.has_work:
            break
    assert [heard[key].content for key in keys] == [expected.content] * 3


def test_a_seed_makes_the_speech_and_another_one_another() -> None:
    subject = engine("cosyvoice3")
    text = (plain_segment("Hello you"),)
    one, same, other = (
        speak(subject, text, SynthesisParams("prompted", seed=seed), UtteranceKey("seed", n))
        for n, seed in enumerate((1, 1, (1 << 63) - 1))
    )
    assert one.pcm == same.pcm != other.pcm
