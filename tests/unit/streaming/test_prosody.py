"""CosyVoice performs the rate, volume and pitch of a span, from the word at which it begins, without a click."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.engine_contract import EngineOutput
from tests.fakes.graph_runner import FakeGraphRunner
from tests.fakes.reading import read
from tests.unit.streaming.engines import KEY, ONE_FAMILY, PROMPTED, engine, networks, run_until_idle, settings
from tests.unit.streaming.test_faults import assert_outputs_close
from tests.unit.streaming.test_first_chunk import late, record_batches
from tts_worker.audio.pcm import Floats, to_float
from tts_worker.engine.cosyvoice.audio.prosody import Prosody
from tts_worker.engine.cosyvoice.audio.renderer import MelResampler
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.settings import TextMode
from tts_worker.engine.cosyvoice.networks.hift import F0Predictor, Source
from tts_worker.text.options import TextOptions
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Command,
    Credit,
    EndText,
    Express,
    Expression,
    Hold,
    Open,
    Release,
    Text,
    UtteranceKey,
)

SENTENCE = "Hello world and you, that it is of the world and you."
SPAN = "that it is of the world"
F0_HZ = 200.0


def marked(attributes: str) -> str:
    return SENTENCE.replace(SPAN, f"<prosody {attributes}>{SPAN}</prosody>")


def voiced(self: F0Predictor, mel: Tensor, final: bool = True, mask: Tensor | None = None) -> Tensor:
    """Random weights predict no pitch."""
    return mel.new_full((mel.shape[0], mel.shape[2] - (0 if final else self.ahead)), F0_HZ)


@pytest.fixture(autouse=True)
def voice_has_a_pitch() -> Iterator[None]:
    with patch.object(F0Predictor, "forward", voiced):
        yield


@dataclass
class Speech:
    """What an engine says, and the pitch that reached the source, by the absolute frame of its audio segment."""

    output: EngineOutput
    f0: dict[int, float]
    text: str

    @property
    def samples(self) -> Floats:
        return to_float(self.output.pcm)

    @property
    def span(self) -> tuple[int, int]:
        """First sample of the span, and of the word after it."""
        first = self.text.index(SPAN)
        words = self.output.words
        return tuple(  # type: ignore[return-value]
            next(word.start_sample for word in words if word.start_char >= char) for char in (first, first + len(SPAN))
        )

    @property
    def pitches(self) -> list[float]:
        return [self.f0[frame] for frame in sorted(self.f0)]


def speak(
    family: str,
    text: str,
    subject: CosyVoiceEngine | None = None,
    expression: Expression | None = None,
    options: TextOptions | None = None,
) -> Speech:
    """Speak ``text``; ``expression`` is set before it."""
    subject = subject or engine(family)
    f0: dict[int, float] = {}
    original = Source.from_noise

    def recording(self: Source, pitch: Tensor, phase: Tensor, start: Tensor, noise: object) -> Tensor:
        f0.update(enumerate(pitch[0].tolist(), int(start[0])))
        return original(self, pitch, phase, start, noise)  # type: ignore[arg-type]

    with patch.object(Source, "from_noise", recording):
        subject.handle(Open(KEY, PROMPTED, 120 * SAMPLE_RATE_HZ))
        if expression is not None:
            subject.handle(Express(KEY, expression))
        for segment in read(text, options):
            subject.handle(Text(KEY, segment))
        subject.handle(EndText(KEY))
        outputs = {KEY: EngineOutput()}
        run_until_idle(subject, outputs)
    return Speech(outputs[KEY], f0, text)


def times(speech: Speech) -> list[tuple[int, int]]:
    return [(word.start_sample, word.end_sample) for word in speech.output.words]


def frame_seconds(family: str) -> float:
    config = networks(family).config
    return config.hift.frame_samples / config.sample_rate_hz


def level_db(samples: Floats) -> float:
    return float(10 * np.log10(np.mean(samples**2)))


@pytest.mark.parametrize("family", [*ONE_FAMILY, "cosyvoice1"])
def test_span_has_its_rate_level_and_pitch(family: str) -> None:
    plain = speak(family, SENTENCE)
    start, end = plain.span
    ramp = SAMPLE_RATE_HZ // 5  # of the level, and what the vocoder's overlap and the resampler blur

    slow = speak(family, marked("rate='50%'"))
    length, plain_length = (each.span[1] - each.span[0] for each in (slow, plain))
    assert slow.span[0] == pytest.approx(start, abs=480)
    assert length == pytest.approx(2 * plain_length, rel=0.03)
    assert len(slow.samples) - length == pytest.approx(len(plain.samples) - plain_length, abs=960)
    assert all(one.end_sample <= two.start_sample for one, two in pairwise(slow.output.words))
    assert slow.output.words[-1].end_sample <= len(slow.samples)

    quiet = speak(family, marked("volume='-12dB'"))
    assert times(quiet) == times(plain)
    assert np.array_equal(quiet.samples[: start - ramp // 4], plain.samples[: start - ramp // 4])
    inside = slice(start + ramp, end - ramp // 4)
    assert level_db(quiet.samples[inside]) - level_db(plain.samples[inside]) == pytest.approx(-12, abs=0.5)
    assert np.array_equal(quiet.samples[end + ramp :], plain.samples[end + ramp :])

    high = speak(family, marked("pitch='+4st'"))
    assert times(high) == times(plain)
    intervals = 12 * np.log2(np.array(high.pitches) / F0_HZ)
    frame_s = frame_seconds(family)
    assert np.all((intervals > -1e-3) & (intervals < 4.001))
    risen = np.flatnonzero(intervals > 3.99)
    assert risen[0] * frame_s == pytest.approx(start / SAMPLE_RATE_HZ + 0.1, abs=0.04)
    assert risen[-1] * frame_s == pytest.approx(end / SAMPLE_RATE_HZ, abs=0.04)
    # Neither a step of the pitch nor one of the level: both take 100 ms.
    assert np.abs(np.diff(intervals)).max() < 1.01
    assert np.array_equal(high.samples[: start - ramp // 2], plain.samples[: start - ramp // 2])


@pytest.mark.parametrize("family", [*ONE_FAMILY, "cosyvoice1"])
def test_neutral_element_changes_no_sample(family: str) -> None:
    plain = speak(family, SENTENCE)
    assert speak(family, marked("rate='medium'")).output.content[0] == plain.output.pcm


@pytest.mark.parametrize("family", [*ONE_FAMILY, "cosyvoice1"])
def test_expressive_speech_does_not_depend_on_credit_pauses_or_graphs(family: str) -> None:
    text = marked("rate='80%' volume='-6dB' pitch='+2st'")
    expected = speak(family, text).output

    subject = engine(family)
    output = EngineOutput()
    subject.handle(Open(KEY, PROMPTED, 0))
    for segment in read(text):
        subject.handle(Text(KEY, segment))
    subject.handle(EndText(KEY))
    turn = 0
    while KEY in subject.sequences:
        turn += 1
        if turn % 3 == 0:
            subject.handle(Hold(KEY))
            run_until_idle(subject, {KEY: output})
            subject.handle(Release(KEY))
        subject.handle(Credit(KEY, 4_801))
        run_until_idle(subject, {KEY: output})
    assert output.pcm == expected.pcm
    assert output.words == expected.words

    graphs = speak(family, text, engine(family, graph_runners=(FakeGraphRunner(), FakeGraphRunner())))
    assert_outputs_close(graphs.output, expected)


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_interleaved_text_has_the_pitch_of_its_words(family: str) -> None:
    subject = engine(family, settings(text_mode=TextMode.INTERLEAVED))
    assert subject.info.unsupported_expressions(follows_instructions=True) == ("style",)
    spoken = speak(family, marked("pitch='-3st'"), subject, options=TextOptions(by_word=True))
    intervals = 12 * np.log2(np.array(spoken.pitches) / F0_HZ)
    assert intervals[0] == 0
    assert intervals.min() == pytest.approx(-3, abs=1e-3)


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_failed_flow_leaves_expression_as_it_was(family: str) -> None:
    """The chunk is rendered again, its words are found once. A sequence alone fails, so there are two."""
    text = marked("rate='80%' volume='-6dB' pitch='+2st'")
    expected = speak(family, text).output
    push = MelResampler.push
    calls = 0

    def fails(self: MelResampler, mel: Tensor, final: bool, prosody: Prosody) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise torch.OutOfMemoryError("out of memory")
        return push(self, mel, final, prosody)

    subject = engine(family, settings(render_batch=4, decode_batch=4))
    keys = [KEY, UtteranceKey(KEY.session, 2)]
    for key in keys:
        subject.handle(Open(key, PROMPTED, 120 * SAMPLE_RATE_HZ))
        for segment in read(text):
            subject.handle(Text(key, segment))
        subject.handle(EndText(key))
    outputs: dict[object, EngineOutput] = {}
    with patch.object(MelResampler, "push", fails):
        run_until_idle(subject, outputs)  # type: ignore[arg-type]
    assert calls > 4
    for key in keys:
        assert_outputs_close(outputs[key], expected)


def change_while_it_speaks(family: str, commands: Sequence[Command]) -> tuple[EngineOutput, int]:
    """Send ``commands`` when the credit is spent, then more credit; return the output and the samples before it."""
    subject = engine(family)
    output = EngineOutput()
    subject.handle(Open(KEY, PROMPTED, 9_600))
    for segment in read(SENTENCE):
        subject.handle(Text(KEY, segment))
    subject.handle(EndText(KEY))
    run_until_idle(subject, {KEY: output})
    rendered = subject.sequences[KEY].output.rendered_samples
    for command in commands:
        subject.handle(command)
        run_until_idle(subject, {KEY: output})
    subject.handle(Credit(KEY, 120 * SAMPLE_RATE_HZ))
    run_until_idle(subject, {KEY: output})
    return output, rendered


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_session_changes_from_the_next_word(family: str) -> None:
    """Also if it pauses before or after the message: the same samples."""
    plain = speak(family, SENTENCE)
    express = Express(KEY, Expression(rate=0.5, volume_db=-12))
    changed, rendered = change_while_it_speaks(family, [express])
    samples = to_float(changed.pcm)
    assert np.array_equal(samples[:rendered], plain.samples[:rendered])
    first = next(n for n, word in enumerate(plain.output.words) if word.start_sample >= rendered + 4_800)
    length, plain_length = (
        words[-1].end_sample - words[first].start_sample for words in (changed.words, plain.output.words)
    )
    assert length == pytest.approx(2 * plain_length, rel=0.05)
    assert [word.start_char for word in changed.words] == [word.start_char for word in plain.output.words]
    for commands in ([express, Hold(KEY), Release(KEY)], [Hold(KEY), express, Release(KEY)]):
        paused, _ = change_while_it_speaks(family, commands)
        assert paused.pcm == changed.pcm, commands
        assert paused.words == changed.words


def test_first_chunk_with_an_expression_waits_for_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its words are follows from the ids."""
    batches = record_batches(monkeypatch)
    runners = (EagerRunner(fixed_shapes=True), EagerRunner())
    subject = engine("cosyvoice3", streams=late(), graph_runners=runners)
    expressive = speak("cosyvoice3", SENTENCE, subject, Expression(pitch_semitones=3))
    assert not batches
    assert min(expressive.pitches) == pytest.approx(F0_HZ * 2 ** (3 / 12))
    speak("cosyvoice3", SENTENCE, subject)
    assert batches


changes = st.lists(st.tuples(st.integers(0, 12), st.sampled_from([0.5, 0.8, 1.0, 1.3, 2.0])), max_size=6)


@examples(deadline=None)
@given(speed=st.sampled_from([0.5, 0.9, 1.0, 1.6]), steps=changes, rest=st.integers(1, 20))
def test_pace_of_stretches_does_not_depend_on_how_the_mel_is_cut(
    speed: float, steps: Sequence[tuple[int, float]], rest: int
) -> None:
    """A change is known no earlier than the frames before it."""
    prosodies = [Prosody.steady(speed)]
    frames = [0]
    for length, rate in steps:
        frames.append(frames[-1] + length)
        prosodies.append(prosodies[-1].changed(frames[-1], Expression(rate=rate)))
    frames.append(frames[-1] + rest)
    mel = torch.randn(1, 4, frames[-1], generator=torch.Generator().manual_seed(1))
    whole = MelResampler().push(mel, True, prosodies[-1])
    cut = MelResampler()
    parts = [
        cut.push(mel[:, :, one:two], n == len(prosodies) - 1, prosodies[n])
        for n, (one, two) in enumerate(pairwise(frames))
    ]
    joined = torch.cat(parts, dim=2)
    assert joined.shape[2] == int(prosodies[-1].output_frames(frames[-1]))
    assert torch.equal(joined, whole)
    paces = [min(max(speed * rate, 0.5), 2.0) for rate in (1.0, *(rate for _, rate in steps))]
    spoken = [length / pace for length, pace in zip(np.diff(frames), paces, strict=True)]
    assert prosodies[-1].output_frames(frames[-1]) == pytest.approx([*accumulate(spoken)][-1])


@examples(deadline=None)
@given(cuts=st.lists(st.integers(1, 700), min_size=1, max_size=5), change=st.integers(0, 20))
def test_gain_is_continuous_and_does_not_depend_on_cuts(cuts: Sequence[int], change: int) -> None:
    prosody = Prosody.steady().changed(change, Expression(volume_db=-20))
    edges = [0, *accumulate(cuts)]
    whole = prosody.gains(0, edges[-1], 100)
    assert np.array_equal(np.concatenate([prosody.gains(a, b - a, 100) for a, b in pairwise(edges)]), whole)
    assert np.abs(np.diff(20 * np.log10(whole))).max(initial=0) < 0.05
    assert np.all(whole[: 100 * change] == (1 if change else np.float32(0.1)))
