"""The first chunk of a call: submitted before the host has read its tokens, with the audio of the usual way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput
from tests.unit.streaming.engines import (
    FAMILIES,
    KEY,
    ONE_FAMILY,
    PROMPTED,
    bundle,
    engine,
    run_until_idle,
    settings,
    synthesize,
)
from tests.unit.streaming.test_device import BlockingStream, LateStream, two_streams
from tests.unit.streaming.test_engine import ResourceUsage
from tests.unit.streaming.test_faults import assert_outputs_close
from tts_worker.engine.cosyvoice.audio_runner import AudioRunner
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStreams, HostStream, PendingCopy
from tts_worker.engine.cosyvoice.ops.language_model import BROKEN
from tts_worker.engine.cosyvoice.token_runner import FirstTokens, TokenRunner
from tts_worker.types import Cancel, Done, EndText, Open, Segment, SynthesisParams, Text, UtteranceKey

SENTENCE = "Hello world and you, that it is of the world."
DRAWS = 11  # 8 to the first boundary, 3 of look-ahead


def record_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the batches of first chunks that are submitted before their ids are read."""
    batches: list[int] = []
    render = AudioRunner.render_first_chunks

    def recording(self: AudioRunner, tokens: FirstTokens) -> None:
        batches.append(len(tokens.members))
        render(self, tokens)

    monkeypatch.setattr(AudioRunner, "render_first_chunks", recording)
    return batches


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return record_batches(monkeypatch)


def late(tokens: Sequence[int] = (1,), audio: Sequence[int] = (1,)) -> ExecutionStreams:
    return two_streams(LateStream(tokens), LateStream(audio))


def runners() -> tuple[EagerRunner, EagerRunner]:
    """Return runners with batches of prefills, as on CUDA."""
    return EagerRunner(fixed_shapes=True), EagerRunner()


def speak(
    subject: CosyVoiceEngine, keys: Sequence[UtteranceKey], params: SynthesisParams = PROMPTED
) -> list[EngineOutput]:
    """Prepare the voice, then speak the sentence for each key at the same time."""
    synthesize(subject, (Segment.whole("it is."),))
    outputs = {key: EngineOutput() for key in keys}
    for key in keys:
        subject.handle(Open(key, params, PLENTY_SAMPLES))
        subject.handle(Text(key, Segment.whole(SENTENCE)))
        subject.handle(EndText(key))
    run_until_idle(subject, outputs)
    return [outputs[key] for key in keys]


@lru_cache
def expected(family: str, speed: float = 1.0) -> EngineOutput:
    (output,) = speak(engine(family), [UtteranceKey("s", 0)], replace(PROMPTED, speed=speed))
    assert output.ends == [Done(UtteranceKey("s", 0))]
    return output


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_first_chunk_is_submitted_before_any_read(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    streams = two_streams(BlockingStream(waited, "tokens"), BlockingStream(waited, "audio"))
    for stream in (streams.tokens, streams.flow):
        stream.is_asynchronous = True
    subject = engine(family, streams=streams)
    synthesize(subject, (Segment.whole("it is."),))
    waited.clear()
    renderer = subject.components.renderer
    before_vocoder: list[list[str]] = []
    vocode = renderer.vocode
    monkeypatch.setattr(renderer, "vocode", lambda *args: (before_vocoder.append([*waited]), vocode(*args))[1])

    output = synthesize(subject, (Segment.whole(SENTENCE),))

    assert before_vocoder[0] == [], "prefill, draws, flow and vocoder are submitted without the host"
    assert before_vocoder[1], "later chunks follow the ids that were read"
    assert waited.index("tokens") < waited.index("audio")
    assert output.pcm == expected(family).pcm
    assert output.words == expected(family).words


@examples(deadline=None, max_examples=4)
@given(
    family=st.sampled_from(FAMILIES),
    tokens=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    audio=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    calls=st.integers(1, 3),
    speed=st.sampled_from([1.0, 1.3]),
)
def test_audio_and_ids_are_those_of_the_usual_way(
    family: str, tokens: list[int], audio: list[int], calls: int, speed: float
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        batches = record_batches(monkeypatch)
        subject = engine(family, streams=late(tokens, audio), graph_runners=runners())
        keys = [UtteranceKey("s", n) for n in range(calls)]
        outputs = speak(subject, keys, replace(PROMPTED, speed=speed))
    assert batches == [1] * (calls == 1), "a batch of the flow has one call here"
    assert [output.content for output in outputs] == [expected(family, speed).content] * calls


def test_calls_share_the_pass_of_their_first_chunks(batches: list[int]) -> None:
    keys = [UtteranceKey("s", n) for n in range(3)]
    outputs = speak(engine("cosyvoice3", settings(render_batch=4), streams=late(), graph_runners=runners()), keys)
    assert batches == [3]
    for output in outputs:
        assert_outputs_close(output, expected("cosyvoice3"))


SILENT = (1, 2, 28, 29, 55, 248, 494)  # speech ids of silence; more than five in a row are dropped


@examples(deadline=None, max_examples=8)
@given(
    place=st.integers(0, DRAWS),
    kind=st.sampled_from(["stop", "silence", "broken", "speech"]),
    retries=st.integers(0, 1),
    speed=st.sampled_from([1.0, 0.7]),
    polls=st.integers(0, 4),
)
def test_chunk_of_other_tokens_is_rendered_again(place: int, kind: str, retries: int, speed: float, polls: int) -> None:
    """Stop ids, dropped silence and broken scores at every place of the first draws."""
    eos = bundle("cosyvoice3").config.lm.eos_id
    ids = list(range(100, 160))
    ids[place : place + 7] = {"stop": [eos], "silence": list(SILENT)}.get(kind, ids[place : place + 7])

    def script(key: UtteranceKey, run: int) -> list[int]:
        return [*(ids if key.session == "b" else ids[-20:]), eos]  # the other prepares the voice

    def run(on_device: bool) -> tuple[EngineOutput, int]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            batches = record_batches(monkeypatch)
            if kind == "broken":
                monkeypatch.setattr(TokenRunner, "collect", breaking(TokenRunner.collect, place))
            config = settings(first_chunk_on_device=on_device, retries=retries)
            subject = engine("cosyvoice3", config, script=script, streams=late([polls], [0, 3]))
            subject.components.decoder.acquire()  # so that a slot that is freed twice shows
            (output,) = speak(subject, [UtteranceKey("b", 1)], replace(PROMPTED, speed=speed))
            free = subject.components.pool.free_pages + subject.components.voice_cache.evictable_pages
            assert free == subject.settings.pages
        return output, len(batches)

    usual, none = run(False)
    output, count = run(True)
    assert (none, count) == (0, 1)
    assert output.content == usual.content


def breaking(collect: Callable[..., list[Any]], place: int) -> Callable[..., list[Any]]:
    """Return ``TokenRunner.collect`` with broken scores at draw ``place`` of the second utterance's first run."""

    def collecting(self: TokenRunner, **kwargs: bool) -> list[Any]:
        results = collect(self, **kwargs)
        for result in results:
            sequence = getattr(result, "sequence", None)
            ids = getattr(result, "ids", [])
            if sequence is None or sequence.key.session != "b":
                continue
            begin = len(sequence.generator.run.drawn)
            if begin <= place < begin + len(ids) and not sequence.generator._run_text.attempt:
                del ids[place - begin :]
                ids.append(BROKEN)
        return results

    return collecting


@pytest.mark.parametrize("stage", ["ids", "flow", "samples"])
def test_fault_of_a_shared_first_chunk_fails_no_call(stage: str, batches: list[int]) -> None:
    keys = [UtteranceKey("s", n) for n in range(2)]
    problem = torch.OutOfMemoryError("out of memory")
    streams = late()
    token_runner, audio_runner = runners()
    subject = engine(
        "cosyvoice3", settings(render_batch=4), streams=streams, graph_runners=(token_runner, audio_runner)
    )
    fails: list[str] = []

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            result = original(*args)
            if batches and not fails:
                fails.append(stage)
                raise problem
            return result

        return call

    if stage == "flow":
        audio_runner.run = failing(audio_runner.run)  # type: ignore[method-assign]
    else:
        stream = streams.tokens if stage == "ids" else streams.flow
        to_host = stream.to_host

        def fetch(tensor: Tensor) -> PendingCopy:
            copy = to_host(tensor)
            is_first = tensor.shape[0] == DRAWS if stage == "ids" else bool(batches) and not fails
            if is_first:
                fails.append(stage)
                copy.wait = failing_wait  # type: ignore[method-assign]
            return copy

        def failing_wait() -> Tensor:
            raise problem

        stream.to_host = fetch  # type: ignore[method-assign]

    outputs = speak(subject, keys)

    assert fails
    assert batches == [2]
    for key, output in zip(keys, outputs, strict=True):
        assert output.ends == [Done(key)]
        assert_outputs_close(output, expected("cosyvoice3"))


def test_cancel_during_the_first_chunk_frees_resources(batches: list[int]) -> None:
    subject = engine("cosyvoice3", streams=late([2], [3]))
    (output,) = speak(subject, [KEY])
    free = ResourceUsage.of(subject)
    for steps in range(5):
        subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(KEY, Segment.whole(SENTENCE)))
        for _ in range(1 + steps):
            subject.step(0.0)
        subject.handle(Cancel(KEY))
        run_until_idle(subject, {})
        assert ResourceUsage.of(subject) == free, steps
    (again,) = speak(subject, [KEY])
    assert len(batches) == 7
    assert again.content == output.content


def test_short_text_is_rendered_in_the_usual_way(batches: list[int]) -> None:
    """Its speech may end before the first chunk, whose audio would be of no use."""
    synthesize(engine("cosyvoice3", streams=late()), (Segment.whole("it"),))
    assert batches == []


def test_host_stream_renders_in_the_usual_way(batches: list[int]) -> None:
    """One step would take as long as all its passes, in which other calls get no audio."""
    speak(engine("cosyvoice3", streams=two_streams(HostStream(), HostStream())), [KEY])
    assert batches == []
