"""Fault isolation: a fault fails one utterance, a dead device restarts the engine, other audio is unaffected."""

from __future__ import annotations

import asyncio
import linecache
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.fakes.assigned_booleans import assigned_booleans
from tests.fakes.opened_files import opened_files
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
from tts_worker.engine.cosyvoice.audio.prosody import Prosody
from tts_worker.engine.cosyvoice.audio.renderer import MelResampler
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.device import device_responds
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner, GraphRunner, Key, Tensors
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig, TextMode
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStreams, HostStream, PendingCopy
from tts_worker.engine.cosyvoice.loader import LoadOptions, bundle_voices, load_engine
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item
from tts_worker.engine.cosyvoice.token_generator import EngineSpec, Script
from tts_worker.engine.cosyvoice.tokens.decoder import DecodeRow
from tts_worker.engine.loop import EngineLoop, EngineState
from tts_worker.errors import ConfigError, DeviceLost, ErrorCode
from tts_worker.types import (
    Audio,
    Boundary,
    Command,
    Done,
    EndText,
    Event,
    Failed,
    Open,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)
from tts_worker.voices.files import save_voice

TEXT = segments(("Hello, ", Boundary.CLAUSE), ("you.", Boundary.END))
TOKENS = 20


def crowd_script(key: UtteranceKey, run: int) -> list[int]:
    first = 1000 * int(key.session[-1], 36)
    return [*range(first, first + TOKENS), 6561 if key.generation == 2 else 6562]


class FailingRunner(EagerRunner):
    """Computes, then raises, so that memory is written in part.

    Does not count prefills, which have one member without fixed shapes.
    """

    def __init__(self, problem: Exception, on_call: int, times: int = 1, *, fixed_shapes: bool = False) -> None:
        super().__init__(fixed_shapes=fixed_shapes)
        self._problem = problem
        self._first = on_call
        self._last = on_call + times
        self.calls = 0
        self.failed: list[Key] = []

    def run(self, key: Key, compute: Callable[..., Tensors], inputs: tuple[Tensor, ...]) -> Tensors:
        result = super().run(key, compute, inputs)
        if key[0] == "null" or (key[0] == "prefill" and not self.fixed_shapes):  # "null" is part of a flow pass
            return result
        self.calls += 1
        if self._first <= self.calls < self._last:
            self.failed.append(key)
            raise self._problem
        return result


CROWD = [UtteranceKey(f"s{n}", 2) for n in range(3)]


def synthesize_crowd(
    tokens: GraphRunner,
    audio: GraphRunner,
    config: StreamingConfig | None = None,
    params: SynthesisParams = PROMPTED,
    streams: ExecutionStreams | None = None,
    script: Script | None = crowd_script,
) -> dict[UtteranceKey, EngineOutput]:
    """Run three utterances at once, each with its own script."""
    subject = engine(
        "cosyvoice2",
        config or settings(render_batch=4, decode_batch=4),
        script=script,
        graph_runners=(tokens, audio),
        streams=streams,
    )
    for key in CROWD:
        subject.handle(Open(key, params, PLENTY_SAMPLES))
        subject.handle(Text(key, Segment.whole("Hello world")))
        subject.handle(EndText(key))
    outputs: dict[UtteranceKey, EngineOutput] = {}
    run_until_idle(subject, outputs)
    assert not subject.sequences
    assert subject.components.decoder.free_slots == settings().max_utterances
    return outputs


def assert_outputs_close(output: EngineOutput, expected: EngineOutput) -> None:
    """Compare words, and audio up to rounding: caches were recomputed, or batches differ."""
    assert output.words == expected.words
    assert output.samples == expected.samples
    difference = np.frombuffer(output.pcm, "<i2").astype(int) - np.frombuffer(expected.pcm, "<i2")
    assert np.abs(difference).max() <= 40


@lru_cache
def crowd_without_faults(
    params: SynthesisParams = PROMPTED, script: Script | None = crowd_script
) -> dict[UtteranceKey, EngineOutput]:
    return synthesize_crowd(EagerRunner(), EagerRunner(), params=params, script=script)


@pytest.fixture
def expected_crowd() -> dict[UtteranceKey, EngineOutput]:
    return crowd_without_faults()


@pytest.mark.parametrize("on_call", [2, 5])
@pytest.mark.parametrize("stage", ["tokens", "audio"])
def test_transient_batch_fault_fails_no_utterance(
    expected_crowd: dict[UtteranceKey, EngineOutput], stage: str, on_call: int
) -> None:
    failing = FailingRunner(torch.OutOfMemoryError("out of memory"), on_call)
    outputs = synthesize_crowd(*((failing, EagerRunner()) if stage == "tokens" else (EagerRunner(), failing)))
    assert failing.calls > on_call
    for key in CROWD:
        assert outputs[key].ends == [Done(key)]
        assert_outputs_close(outputs[key], expected_crowd[key])


@pytest.mark.parametrize("stage", ["tokens", "audio"])
def test_isolation_of_a_fault_assigns_no_boolean(stage: str) -> None:
    """The contract checks this without faults."""
    networks("cosyvoice2")  # PyTorch switches the modules that it loads out of training
    failing = FailingRunner(torch.OutOfMemoryError("out of memory"), 2)
    with assigned_booleans() as assigned:
        synthesize_crowd(*((failing, EagerRunner()) if stage == "tokens" else (EagerRunner(), failing)))
    assert failing.failed
    assert assigned == []


def test_fault_opens_no_file_on_the_engine_thread(caplog: pytest.LogCaptureFixture) -> None:
    subject = engine("cosyvoice2", graph_runners=(FailingRunner(RuntimeError("unknown"), 2), EagerRunner()))
    linecache.clearcache()  # of the source that another fault has shown
    with opened_files() as files:
        output = synthesize(subject, (Segment.whole("Hello world"),))
    assert [type(end) for end in output.ends] == [Failed]
    assert files == [], "a slow disk must not delay other utterances"
    assert "test_faults.py" in caplog.text, "the log says where it was raised"


def test_failed_shared_start_fails_no_utterance(expected_crowd: dict[UtteranceKey, EngineOutput]) -> None:
    failing = FailingRunner(torch.OutOfMemoryError("out of memory"), 2, fixed_shapes=True)  # after the voice's prefix
    outputs = synthesize_crowd(failing, EagerRunner())
    assert [key[:2] for key in failing.failed] == [("prefill", 4)]
    for key in CROWD:
        assert outputs[key].ends == [Done(key)]
        assert_outputs_close(outputs[key], expected_crowd[key])


@pytest.mark.parametrize("on_call", [1, 2, 4])
def test_draws_after_failed_step_are_unchanged(on_call: int) -> None:
    expected = crowd_without_faults(script=None)
    failing = FailingRunner(torch.OutOfMemoryError("out of memory"), on_call)
    outputs = synthesize_crowd(failing, EagerRunner(), script=None)
    assert failing.calls > on_call
    for key in CROWD:
        assert outputs[key].ends == expected[key].ends == [Done(key)]
        assert_outputs_close(outputs[key], expected[key])


@pytest.mark.parametrize("on_call", [2, 3, 5])
def test_resampled_audio_survives_retried_pass(on_call: int) -> None:
    params = replace(PROMPTED, speed=1.3)
    config = settings(render_batch=4, decode_batch=4)
    expected = crowd_without_faults(params)
    failing = FailingRunner(torch.OutOfMemoryError("out of memory"), on_call)
    outputs = synthesize_crowd(EagerRunner(), failing, config, params)
    assert failing.calls > on_call
    for key in CROWD:
        assert_outputs_close(outputs[key], expected[key])


class FailingCopyStream(HostStream):
    """A stream on which one copy to the host fails."""

    def __init__(self, on_fetch: int) -> None:
        super().__init__()
        self.remaining = on_fetch

    def to_host(self, tensor: Tensor) -> PendingCopy:
        self.remaining -= 1
        return _FailedCopy() if self.remaining == 0 else super().to_host(tensor)


class _FailedCopy:
    ready = True

    def wait(self) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")


@pytest.mark.parametrize("on_fetch", [1, 2])
def test_audio_lost_in_copy_is_rendered_again(expected_crowd: dict[UtteranceKey, EngineOutput], on_fetch: int) -> None:
    host = HostStream()
    failing_stream = FailingCopyStream(on_fetch)
    config = settings(render_batch=4, decode_batch=4)
    outputs = synthesize_crowd(
        EagerRunner(), EagerRunner(), config, streams=ExecutionStreams(host, failing_stream, failing_stream)
    )
    assert failing_stream.remaining < 0
    for key in CROWD:
        assert outputs[key].ends == [Done(key)]
        assert_outputs_close(outputs[key], expected_crowd[key])


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_failed_prompt_is_computed_again(family: str) -> None:
    expected = synthesize(engine(family), TEXT)
    subject = engine(family, graph_runners=(EagerRunner(), FailingRunner(torch.OutOfMemoryError("out of memory"), 1)))
    (end,) = synthesize(subject, TEXT).ends
    assert isinstance(end, Failed)
    assert_outputs_close(synthesize(subject, TEXT), expected)


def test_failed_resampling_does_not_advance_state(monkeypatch: pytest.MonkeyPatch) -> None:
    params = replace(PROMPTED, speed=1.3)
    config = settings(render_batch=4, decode_batch=4)
    expected = crowd_without_faults(params)
    push = MelResampler.push
    calls = 0

    def fails(self: MelResampler, mel: Tensor, final: bool, prosody: Prosody) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:  # the second member of a batch
            raise torch.OutOfMemoryError("out of memory")
        return push(self, mel, final, prosody)

    monkeypatch.setattr(MelResampler, "push", fails)
    outputs = synthesize_crowd(EagerRunner(), EagerRunner(), config, params)
    assert calls > 2
    for key in CROWD:
        assert_outputs_close(outputs[key], expected[key])


def test_text_is_not_fed_twice_after_lost_ids() -> None:
    def run(on_fetch: int) -> tuple[dict[UtteranceKey, EngineOutput], list[int]]:
        """Return the outputs, and the batch size of each prefill; 0 for a burst."""
        host = HostStream()
        failing_stream = FailingCopyStream(on_fetch)
        config = settings(text_mode=TextMode.INTERLEAVED, decode_batch=4)
        subject = engine("cosyvoice3", config, streams=ExecutionStreams(failing_stream, host, host))
        passes: list[int] = []
        prefill = subject.components.decoder.prefill
        burst = subject.components.decoder.burst

        def counting_prefill(rows: Sequence[DecodeRow], items: Sequence[Sequence[Item]]) -> PendingCopy:
            passes.append(len(rows))
            return prefill(rows, items)

        def counting_burst(rows: Sequence[DecodeRow], steps: int) -> PendingCopy:
            passes.append(0)
            return burst(rows, steps)

        subject.components.decoder.prefill = counting_prefill
        subject.components.decoder.burst = counting_burst  # type: ignore[method-assign]
        for key in CROWD[:2]:
            subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
            text = "Hello world and you, that it is of the world and the world and so it is of you and the world."
            subject.handle(Text(key, Segment.whole(text)))
            subject.handle(EndText(key))
        outputs: dict[UtteranceKey, EngineOutput] = {}
        run_until_idle(subject, outputs)
        return outputs, passes

    expected, passes = run(on_fetch=10**9)
    first_shared = 1 + next(i for i, rows in enumerate(passes) if rows > 1)
    outputs, _ = run(on_fetch=first_shared)
    for key in CROWD[:2]:
        assert outputs[key].ends == expected[key].ends == [Done(key)]
        assert_outputs_close(outputs[key], expected[key])


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (torch.OutOfMemoryError("out of memory"), ErrorCode.OUT_OF_MEMORY),
        (ValueError("numbers"), ErrorCode.SYNTHESIS_FAILED),
    ],
)
def test_persistent_fault_fails_one_utterance(
    expected_crowd: dict[UtteranceKey, EngineOutput], problem: Exception, code: ErrorCode
) -> None:
    config = settings(render_batch=4, decode_batch=4)
    outputs = synthesize_crowd(
        EagerRunner(), FailingRunner(problem, 3, times=2), config
    )  # fails the batch, then its first member
    ends = [end for key in CROWD for end in outputs[key].ends]
    (failed,) = [end for end in ends if isinstance(end, Failed)]
    assert failed.error.code is code
    assert failed.error.retryable
    assert sum(isinstance(end, Done) for end in ends) == 2
    assert all(outputs[key].samples == expected_crowd[key].samples for key in CROWD if key != failed.key)


def test_dead_device_raises_device_lost() -> None:
    failing = FailingRunner(RuntimeError("device-side assert"), 3)
    subject = engine("cosyvoice3", graph_runners=(EagerRunner(), failing), healthy=lambda: False)
    with pytest.raises(DeviceLost) as caught:
        synthesize(subject, TEXT)
    assert "Hello" not in caught.value.message


@pytest.mark.parametrize("is_healthy", [True, False])
def test_error_outside_of_a_pass_checks_the_device(is_healthy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a query of an event after an illegal memory access."""

    def fail(now_us: int) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    subject = engine("cosyvoice3", healthy=lambda: is_healthy)
    monkeypatch.setattr(subject, "_emit", fail)
    with pytest.raises(RuntimeError if is_healthy else DeviceLost):
        synthesize(subject, TEXT)


def test_error_in_a_command_checks_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new utterance resets its slot: often the first one to hear of an error of a kernel before it."""

    def fail() -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    subject = engine("cosyvoice3", healthy=lambda: False)
    monkeypatch.setattr(subject.components.decoder, "acquire", fail)
    with pytest.raises(DeviceLost):
        subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))


def test_error_in_the_warm_up_checks_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: StreamingConfig) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    subject = engine("cosyvoice3", healthy=lambda: False)
    monkeypatch.setattr(subject.components, "capture", fail)
    with pytest.raises(DeviceLost):
        subject.warm_up()


def test_device_without_memory_still_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost device refuses everything with its error, also an allocation."""
    errors = [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("CUDA error: unspecified", 719)]

    def fail(*args: object, **kwargs: object) -> Tensor:
        raise errors.pop(0)

    monkeypatch.setattr(torch, "ones", fail)
    assert device_responds(torch.device("cpu"))
    assert not device_responds(torch.device("cpu"))


@pytest.mark.parametrize("is_healthy", [True, False])
def test_error_while_loading_checks_the_device(is_healthy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sticky error that a thread beside the engine has caused stops every attempt to rebuild it in this process."""

    def fail(*args: object, **kwargs: object) -> Networks:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nAdvice follows.")

    monkeypatch.setattr(Networks, "load", fail)
    monkeypatch.setattr("tts_worker.engine.cosyvoice.loader.device_responds", lambda device: is_healthy)
    with pytest.raises(RuntimeError if is_healthy else DeviceLost, match="illegal memory access") as caught:
        load_engine(LoadOptions(bundle("cosyvoice3").path, device="cpu"))
    assert is_healthy or "Advice" not in str(caught.value)


async def test_faulted_engine_is_rebuilt() -> None:
    built: list[CosyVoiceEngine] = []

    def factory() -> CosyVoiceEngine:
        built.append(engine("cosyvoice3"))
        if len(built) == 1:
            built[0].handle = fail_at_end_of_text  # type: ignore[method-assign]
        return built[-1]

    def fail_at_end_of_text(command: Command) -> None:
        if isinstance(command, EndText) and command.key == KEY:
            raise ValueError("not a fault of one utterance")
        CosyVoiceEngine.handle(built[0], command)

    loop = EngineLoop(factory, restart_backoff_s=(0.0, 0.0))
    states = []
    came: asyncio.Queue[Event] = asyncio.Queue()
    loop.on_state(states.append)
    loop.subscribe("test", came.put_nowait)
    await loop.start()

    async def ends(key: UtteranceKey) -> Done | Failed:
        loop.post(Open(key, PROMPTED, PLENTY_SAMPLES))
        for _ in range(3):
            for segment in TEXT:
                loop.post(Text(key, segment))
        loop.post(EndText(key))
        while isinstance(event := await came.get(), Audio):
            pass
        return event

    try:
        ended = await ends(KEY)
        assert isinstance(ended, Failed)
        assert ended.error.code is ErrorCode.ENGINE_FAULT
        assert states[-1] is EngineState.FAULTED
        again: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        loop.on_state(lambda state: again.set_result(None) if state is EngineState.READY else None)
        await again
        assert isinstance(await ends(UtteranceKey("test", 2)), Done)
        assert len(built) == 2
    finally:
        await loop.stop()


def test_nan_scores_fail_the_utterance_only() -> None:
    loaded = Networks.load(bundle("cosyvoice3"))
    rows = loaded.config.lm.speech_rows
    loaded.lm.llm_decoder.bias = torch.nn.Parameter(torch.full([rows], torch.nan), requires_grad=False)
    output = synthesize(engine("cosyvoice3", loaded=loaded), TEXT)
    (end,) = output.ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.SYNTHESIS_FAILED
    assert not output.audio


# -- loading ----------------------------------------------------------------------------------------------------------


def test_default_threads_leave_one_core_free(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(
        "tts_worker.engine.cosyvoice.loader.os.sched_getaffinity", lambda pid: set(range(6)), raising=False
    )
    monkeypatch.setattr("tts_worker.engine.cosyvoice.loader.os.cpu_count", lambda: 6)
    for threads in (None, 3):
        with pytest.raises(ConfigError, match="memory_gb"):
            load_engine(LoadOptions(bundle("cosyvoice3").path, device="cpu", memory_gb=0.001, threads=threads))
    assert asked == [5, 3]


# -- voices -----------------------------------------------------------------------------------------------------------


def engine_with_stored_voices(folder: Path) -> CosyVoiceEngine:
    """Return an engine with stored voices and the speakers of the bundle only."""
    family = "cosyvoice3"
    config = settings()
    from tests.unit.streaming.engines import networks

    parts = Components.build(networks(family), tokenizer(family), bundle_voices(bundle(family)), config, stored=folder)
    return CosyVoiceEngine(parts, EngineSpec(bundle(family).config, tokenizer(family), config))


def test_stored_voice_can_be_removed_while_in_use(tmp_path: Path) -> None:
    subject = engine_with_stored_voices(tmp_path)
    params = SynthesisParams("alice", seed=3)
    assert refusal_code(subject, params) is ErrorCode.UNKNOWN_VOICE
    folder = save_voice(tmp_path, "alice", voice("cosyvoice3"))
    expected = synthesize(subject, TEXT, params)
    assert expected.samples

    subject.handle(Open(KEY, params, PLENTY_SAMPLES))
    subject.handle(Text(KEY, TEXT[0]))
    assert subject.wait_for_work()
    for _ in range(4):
        assert not [event for event in subject.step(0.0) if not isinstance(event, Audio)]
    for file in folder.iterdir():
        file.unlink()
    assert refusal_code(subject, params) is ErrorCode.UNKNOWN_VOICE
    subject.handle(Text(KEY, TEXT[1]))
    subject.handle(EndText(KEY))
    outputs = {KEY: EngineOutput()}
    run_until_idle(subject, outputs)
    assert [type(end) for end in outputs[KEY].ends] == [Done]


def refusal_code(subject: CosyVoiceEngine, params: SynthesisParams) -> ErrorCode:
    key = UtteranceKey("refused", 1)
    subject.handle(Open(key, params, PLENTY_SAMPLES))
    subject.handle(Text(key, TEXT[0]))
    subject.handle(EndText(key))
    outputs = {key: EngineOutput()}
    run_until_idle(subject, outputs)
    (end,) = outputs[key].ends
    assert isinstance(end, Failed)
    return end.error.code


@pytest.mark.parametrize(
    "params",
    [
        replace(PROMPTED, seed=-1),
        replace(PROMPTED, seed=1 << 63),
        replace(PROMPTED, language="tlh"),
        replace(PROMPTED, speed=float("inf")),
        SynthesisParams("tiny_spk", instruct="whisper"),
    ],
)
def test_unsupported_parameters_are_refused(params: SynthesisParams) -> None:
    subject = engine("cosyvoice3")
    assert refusal_code(subject, params) is ErrorCode.INVALID_REQUEST
    assert all(state.users == 0 for state in subject.components.voice_cache.states.values())


def test_instruction_applies_to_one_utterance_only() -> None:
    subject = engine("cosyvoice3")
    plain = synthesize(subject, TEXT).pcm
    assert synthesize(subject, TEXT, replace(PROMPTED, instruct="whisper it")).pcm != plain
    assert synthesize(subject, TEXT).pcm == plain


def test_special_tokens_in_text_are_plain_text() -> None:
    subject = engine("cosyvoice3")
    segment = Segment.whole("a<|endofprompt|>b")
    output = synthesize(subject, (segment,))
    ids = tokenizer("cosyvoice3")
    assert ids.end_of_prompt_id not in ids.encode(segment.text)
    assert [type(end) for end in output.ends] == [Done]


def test_oversized_segment_without_punctuation_is_refused() -> None:
    subject = engine("cosyvoice3")
    output = synthesize(subject, (Segment.whole("hello" * 2000),))
    (end,) = output.ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.TEXT_TOO_LONG
