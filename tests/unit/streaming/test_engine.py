"""Streaming equals offline, batched equals single, and every chunk costs the same."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.streaming.engines import (
    KEY,
    ONE_FAMILY,
    PROMPTED,
    bundle,
    engine,
    networks,
    run_until_idle,
    settings,
    synthesize,
    tokenizer,
    voice,
)
from tools.reference.pipeline import OfflinePipeline
from tts_worker.audio.pcm import to_pcm
from tts_worker.engine.chunk_log import log_chunk
from tts_worker.engine.cosyvoice.audio.chunks import trimmed_prompt
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.settings import TextMode
from tts_worker.engine.cosyvoice.voices.speaker import Request, Speaker
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
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

families = pytest.mark.parametrize("family", ONE_FAMILY)


def samples(pcm: bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.frombuffer(pcm, "<i2").astype(np.int64)


def assert_pcm_close(a: bytes, b: bytes) -> None:
    """Compare up to float32 rounding, which the vocoder amplifies about a hundredfold.

    The difference must stay 50 dB below the speech, and 34 dB at its peak. A float32 rounding lies 144 dB below the
    value; networks of other shapes add a few hundred of them, and the excitation integrates the pitch over the segment.
    """
    assert len(a) == len(b)
    expected = samples(b)
    difference = samples(a) - expected
    assert np.square(difference).sum() <= 1e-5 * np.square(expected).sum()
    assert np.abs(difference).max(initial=0) <= max(1, 0.02 * np.abs(expected).max(initial=0))


def build_request(family: str, text: str, first_tokens: int) -> Request:
    """Build the request that the engine makes for ``text`` with the prompted voice."""
    config = bundle(family).config
    request = Speaker(voice(family), config, tokenizer(family)).request(text)
    drop = trimmed_prompt(len(request.flow_prompt), config.flow.chunk_tokens, first_tokens)
    return replace(request, flow_prompt=request.flow_prompt[drop:], prompt_mel=request.prompt_mel[2 * drop :])


@families
def test_streaming_audio_equals_offline_audio(family: str) -> None:
    text = "Hello, you and the world of it."
    pipeline = OfflinePipeline(networks(family))
    expected = pipeline.speak(build_request(family, text, settings().first_tokens), seed=PROMPTED.seed, stream=True)
    audio = torch.cat([chunk.samples for chunk in expected]).numpy()

    output = synthesize(engine(family), (Segment.whole(text),))

    assert output.ends == [Done(KEY)]
    assert len(audio) > 24_000
    assert_pcm_close(output.pcm, to_pcm(audio))


def test_words_do_not_depend_on_when_the_text_ends() -> None:
    """The last words have no audio: their run ended where a chunk did."""
    text = segments(("it 😀", Boundary.FLUSH), ("Yes … it x, ", Boundary.PARAGRAPH))
    params = replace(PROMPTED, seed=0)
    subject = engine("cosyvoice3")
    expected = synthesize(subject, text, params)
    outputs = {KEY: EngineOutput()}
    subject.handle(Open(KEY, params, PLENTY_SAMPLES))
    for segment in text:
        subject.handle(Text(KEY, segment))
    run_until_idle(subject, outputs)
    assert outputs[KEY].pcm == expected.pcm
    subject.handle(EndText(KEY))
    run_until_idle(subject, outputs)

    words = [word for audio in expected.audio for word in audio.words]
    assert words[-1].start_sample == expected.samples, "the case that is meant"
    assert [word for audio in outputs[KEY].audio for word in audio.words] == words


@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_log_tells_what_each_chunk_is_rendered_from(speed: float, caplog: pytest.LogCaptureFixture) -> None:
    subject = engine("cosyvoice2")
    text = Segment.whole("Hello, you and the world of it.")
    quiet = synthesize(subject, (text,), replace(PROMPTED, speed=speed))
    caplog.set_level(logging.DEBUG, "tts_worker.chunks")
    output = synthesize(subject, (text,), replace(PROMPTED, speed=speed))
    for audio in output.audio:
        log_chunk("cosyvoice", audio)
    logged = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    chunks = list({fields["token_start"]: fields for fields in logged}.values())  # rendered; emitted in several

    assert len(chunks) >= 2
    for name in ("token", "mel"):
        assert [0, *(chunk[f"{name}_end"] for chunk in chunks[:-1])] == [chunk[f"{name}_start"] for chunk in chunks]
    hop_samples = subject.components.networks.config.hift.frame_samples
    assert chunks[-1]["mel_end"] * hop_samples == len(output.pcm) // 2
    assert all(-20 < chunk["mel_min"] < chunk["mel_max"] < 20 for chunk in chunks)
    assert {"lm_ms", "flow_ms", "vocoder_ms", "pcm_min", "sha256"} <= set(logged[0])
    assert quiet.pcm == output.pcm
    assert all("mel_min" not in dict(audio.meta.details) for audio in quiet.audio), "it waits for the device"


@families
def test_interleaved_audio_equals_offline_audio(family: str) -> None:
    words = ("Hello", " world", " and", " you")
    # Never ends by itself: the offline path has no minimum length.
    loaded = networks(family, -50.0)
    ids = tokenizer(family)
    request = build_request(family, "", settings().first_tokens)
    pipeline = OfflinePipeline(loaded)
    machine = pipeline.interleave(request, ids.end_of_prompt_id if family == "cosyvoice3" else None)
    text = (i for word in words for i in ids.encode(word))
    expected = pipeline.speak(request, text=(machine, text), seed=PROMPTED.seed, stream=True)
    audio = torch.cat([chunk.samples for chunk in expected]).numpy()

    subject = engine(family, settings(text_mode=TextMode.INTERLEAVED), loaded=loaded)
    output = synthesize(subject, segments(*((word, Boundary.WORD) for word in words)))

    assert output.ends == [Done(KEY, "no_end_of_speech")]
    fade_samples = 480
    assert_pcm_close(output.pcm[: -2 * fade_samples], to_pcm(audio[:-fade_samples]))


@pytest.mark.parametrize("steps", [0, 3, 1_000])
@families
def test_flush_speaks_all_interleaved_words(family: str, steps: int) -> None:
    words = segments(*((word, Boundary.WORD) for word in ("Hello", " world", " and", " you")))
    config = settings(text_mode=TextMode.INTERLEAVED)
    whole = synthesize(engine(family, config), words)
    subject = engine(family, config)
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    for segment in words:
        subject.handle(Text(KEY, segment))
    outputs = {KEY: EngineOutput()}
    for step in range(steps):
        outputs[KEY].audio += [event for event in subject.step(step / 100) if isinstance(event, Audio)]
    subject.handle(Text(KEY, Segment(len(words), (), words[-1].end, words[-1].end, Boundary.FLUSH)))
    run_until_idle(subject, outputs)
    assert outputs[KEY].pcm == whole.pcm
    assert not outputs[KEY].ends
    subject.handle(EndText(KEY))
    run_until_idle(subject, outputs)
    assert outputs[KEY].pcm == whole.pcm
    assert outputs[KEY].ends == whole.ends


@pytest.mark.parametrize("family", ["cosyvoice1", "cosyvoice3"])
def test_speakers_that_follow_no_instruction_are_named(family: str) -> None:
    """Those without prompt audio, but with CosyVoice-300M: its instructions need none."""
    subject = engine(family, settings())
    without_prompt = tuple(name for name in subject.info.voices if name != "prompted")
    assert without_prompt
    assert subject.info.uninstructed == (() if family == "cosyvoice1" else without_prompt)
    subject.close()


@pytest.mark.parametrize(
    ("family", "mode", "crowd"),
    [("cosyvoice3", TextMode.CLAUSE, 32), ("cosyvoice2", TextMode.INTERLEAVED, 16)],
)
def test_batched_audio_equals_single_audio(family: str, mode: TextMode, crowd: int) -> None:
    config = settings(
        max_utterances=crowd, pages=4 * crowd + 20, text_mode=mode, decode_batch=crowd, render_batch=8, checked=False
    )
    texts = [("Hello", " you"), ("it", " is"), ("Yes",), ("and the", " world", " of it")]
    params = [replace(PROMPTED, seed=n, voice=("prompted", "tiny_spk")[n % 2]) for n in range(crowd)]

    def text_of(n: int) -> tuple[Segment, ...]:
        parts = texts[n % len(texts)]
        ends = [Boundary.CLAUSE if mode is TextMode.CLAUSE else Boundary.WORD] * (len(parts) - 1) + [Boundary.END]
        return segments(*zip(parts, ends, strict=True))

    subject = engine(family, config)
    keys = [UtteranceKey(f"s{n}", n) for n in range(crowd)]
    outputs: dict[UtteranceKey, EngineOutput] = {}
    for n, key in enumerate(keys):
        subject.handle(Open(key, params[n], PLENTY_SAMPLES))
    for turn in range(3):  # segments arrive in turns and end at different times
        for n, key in enumerate(keys):
            for command in [Text(key, segment) for segment in text_of(n)[turn : turn + 1]]:
                subject.handle(command)
            if turn == len(text_of(n)) - 1:
                subject.handle(EndText(key))
        for event in subject.step(turn / 100):
            assert isinstance(event, Audio)
            outputs.setdefault(event.key, EngineOutput()).audio.append(event)
    run_until_idle(subject, outputs)

    alone = engine(family, settings(text_mode=mode))
    for n in range(0, crowd, 9):
        expected = synthesize(alone, text_of(n), params[n], UtteranceKey("alone", n))
        assert_pcm_close(outputs[keys[n]].pcm, expected.pcm)
        assert outputs[keys[n]].words == expected.words
    assert [end for key in keys for end in outputs[key].ends if not isinstance(end, Done)] == []
    assert not subject.sequences


def split_segments(text: str, cuts: list[int], *, by_word: bool) -> list[list[Segment]]:
    """Return the segments that arrive with each part of ``text``, split at ``cuts``."""
    pipeline = TextPipeline(TextOptions(by_word=by_word))
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    portion = [pipeline.feed(text[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    return [*portion, pipeline.end()]


@pytest.fixture(scope="module")
def engines() -> dict[TextMode, CosyVoiceEngine]:
    return {mode: engine("cosyvoice3", settings(text_mode=mode)) for mode in TextMode}


SENTENCES = "Yes, it is 5. And you, the world: hello."


@examples(deadline=None, max_examples=5)
@given(
    mode=st.sampled_from(TextMode),
    cuts=st.lists(st.integers(0, len(SENTENCES)), max_size=6),
    steps=st.lists(st.integers(0, 12), min_size=9, max_size=9),
)
def test_audio_does_not_depend_on_text_splits(
    engines: dict[TextMode, CosyVoiceEngine], mode: TextMode, cuts: list[int], steps: list[int]
) -> None:
    subject = engines[mode]
    by_word = mode is TextMode.INTERLEAVED
    whole = tuple(segment for portion in split_segments(SENTENCES, [], by_word=by_word) for segment in portion)
    expected = synthesize(subject, whole)

    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    outputs = {KEY: EngineOutput()}
    for portion, wait in zip(split_segments(SENTENCES, cuts, by_word=by_word), steps, strict=False):
        for segment in portion:
            subject.handle(Text(KEY, segment))
        for _ in range(wait):
            for event in subject.step(0.0):
                assert isinstance(event, Audio)
                outputs[KEY].audio.append(event)
    subject.handle(EndText(KEY))
    run_until_idle(subject, outputs)

    assert outputs[KEY].content == expected.content


@families
def test_every_chunk_costs_the_same(family: str) -> None:
    """Computed frames are equal from the third chunk to the last but one."""
    tokens = 250
    eos = bundle(family).config.lm.eos_id
    subject = engine(family, script=lambda key, run: [*(i * 31 % 6561 for i in range(tokens)), eos])
    components = subject.components
    costs = []
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, Segment.whole("Hello")))
    subject.handle(EndText(KEY))
    before = (0, 0)
    while subject.has_work:
        for event in subject.step(0.0):
            if isinstance(event, Audio) and event.meta.wall_ms:
                now = (components.renderer.flow_frames, components.renderer.vocoder_frames)
                costs.append((now[0] - before[0], now[1] - before[1]))
                before = now
    assert len(costs) == 11
    assert len(set(costs[2:-1])) == 1
    assert costs[2][0] == 50  # one chunk of the trained mask, independent of the position


@families
def test_first_chunk_needs_minimal_tokens(family: str) -> None:
    subject = engine(family, settings(smooth_start=False), script=lambda key, run: [5] * 200)
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, Segment.whole("Hello")))
    while not any(isinstance(event, Audio) for event in subject.step(0.0)):
        assert subject.has_work
    assert subject.timings.tokens == settings().first_tokens + bundle(family).config.flow.lookahead_tokens
    subject.handle(Cancel(KEY))


def test_voice_prompt_is_computed_once_and_shared() -> None:
    subject = engine("cosyvoice3")
    # 42 of 60 tokens remain after trimming; the first 25 make a shareable chunk.
    pool = subject.components.pool
    prompt_pages = 1
    free = pool.free_pages
    synthesize(subject, (Segment.whole("it"),))
    assert pool.free_pages == free - prompt_pages
    computed = subject.components.renderer.flow_frames
    synthesize(subject, (Segment.whole("it"),), key=UtteranceKey("again", 1))
    assert pool.free_pages == free - prompt_pages
    assert subject.components.renderer.flow_frames == 2 * computed


@dataclass(frozen=True)
class ResourceUsage:
    """Resources of an engine in use and free."""

    utterances: int
    free_decoder_slots: int
    free_pages: int
    free_flow_slots: int
    prepared_voices: int

    @classmethod
    def of(cls, subject: CosyVoiceEngine) -> ResourceUsage:
        components = subject.components
        return cls(
            len(subject.sequences),
            components.decoder.free_slots,
            components.pool.free_pages,
            components.pool.free_slots,
            components.voice_cache.prepared_voices,
        )


@examples(deadline=None, max_examples=8)
@given(
    mode=st.sampled_from(TextMode),
    steps=st.lists(st.integers(0, 25), min_size=4, max_size=4),
    holds=st.sets(st.integers(0, 3)),
    credit=st.sampled_from([0, 480, 30_000, PLENTY_SAMPLES]),
)
def test_cancel_at_any_step_frees_resources(
    engines: dict[TextMode, CosyVoiceEngine], mode: TextMode, steps: list[int], holds: set[int], credit: int
) -> None:
    subject = engines[mode]
    synthesize(subject, segments(("it ", Boundary.WORD), ("is.", Boundary.END)))  # prepares the voice
    free = ResourceUsage.of(subject)
    keys = [UtteranceKey(f"s{n}", n) for n in range(4)]
    for key in keys:
        subject.handle(Open(key, PROMPTED, credit))
        subject.handle(Text(key, *segments(("Hello world and ", Boundary.WORD))))
    for n, (key, wait) in enumerate(zip(keys, steps, strict=True)):
        for _ in range(wait):
            subject.step(0.0)
        subject.handle(Hold(key) if n in holds else Credit(key, 480))
        subject.handle(Cancel(key))
    assert ResourceUsage.of(subject) == free
    assert not subject.has_work
    assert not subject.step(0.0)


def test_hold_at_any_step_does_not_change_audio() -> None:
    subject = engine("cosyvoice2")
    text = segments(("Hello, ", Boundary.CLAUSE), ("you.", Boundary.END))
    expected = synthesize(subject, text)
    subject.handle(Open(KEY, PROMPTED, 9_000))
    for segment in text:
        subject.handle(Text(KEY, segment))
    subject.handle(EndText(KEY))
    output = EngineOutput()
    while not output.ends:
        subject.handle(Hold(KEY))
        assert not subject.has_work, "a held utterance needs no operation"
        assert not subject.step(0.0)
        subject.handle(Release(KEY))
        subject.handle(Credit(KEY, 2_400))
        for event in subject.step(0.0):
            if isinstance(event, Audio):
                output.audio.append(event)
            else:
                assert isinstance(event, Done)
                output.ends.append(event)
    assert output.pcm == expected.pcm


@families
@pytest.mark.parametrize("speed", [0.5, 1.7])
def test_speed_scales_audio_length_and_words(family: str, speed: float) -> None:
    tokens = 70
    eos = bundle(family).config.lm.eos_id
    subject = engine(family, script=lambda key, run: [*range(100, 100 + tokens), eos])
    output = synthesize(subject, (Segment.whole("Hello world and you"),), replace(PROMPTED, speed=speed))
    assert output.samples == int(2 * tokens / speed) * 480
    assert [word.start_char for word in output.words] == [0, 6, 12, 16]
    assert output.words[-1].end_sample <= output.samples


def test_clock_jumps_do_not_change_audio() -> None:
    text = segments(("Hello, ", Boundary.CLAUSE), ("you.", Boundary.END))
    expected = synthesize(engine("cosyvoice3"), text)
    subject = engine("cosyvoice3")
    clock = [0.0, 1e9, -1e9, 5.0, -0.5, 1e-9]
    keys = [UtteranceKey("s", n) for n in range(3)]
    outputs = {key: EngineOutput() for key in keys}
    for key in keys:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        for segment in text:
            subject.handle(Text(key, segment))
        subject.handle(EndText(key))
    for step in range(1000):
        for event in subject.step(clock[step % len(clock)]):
            if isinstance(event, Audio):
                outputs[event.key].audio.append(event)
            else:
                outputs[event.key].ends.append(event)
        if not subject.has_work:
            break
    assert [outputs[key].content for key in keys] == [expected.content] * 3


def test_seed_determines_audio() -> None:
    subject = engine("cosyvoice3")
    text = (Segment.whole("Hello you"),)
    one, same, other = (
        synthesize(subject, text, SynthesisParams("prompted", seed=seed), UtteranceKey("seed", n))
        for n, seed in enumerate((1, 1, (1 << 63) - 1))
    )
    assert one.pcm == same.pcm != other.pcm
