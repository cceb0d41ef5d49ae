"""What a fault costs: one call where it is one call's, a restart where the device is gone, nobody else's sound ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.streaming.engines import (
    FAMILIES,
    KEY,
    PROMPTED,
    bundle,
    engine,
    hear,
    settings,
    speak,
    tokenizer,
    voice,
)
from tts_worker.engine.cosyvoice.chunks import Item
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.loop import EngineLoop, EngineState
from tts_worker.engine.streaming.components import Components
from tts_worker.engine.streaming.config import StreamingConfig, TextMode
from tts_worker.engine.streaming.decode import DecodeRow
from tts_worker.engine.streaming.engine import CosyVoiceEngine
from tts_worker.engine.streaming.graphs import EagerRunner, Runner, Tensors
from tts_worker.engine.streaming.load import LoadOptions, bundle_voices, load_engine
from tts_worker.engine.streaming.render import MelResampler
from tts_worker.engine.streaming.streams import ExecutionStreams, HostStream, PendingCopy
from tts_worker.engine.streaming.token_generator import Model, Script
from tts_worker.engine.streaming.utterance import plain_segment
from tts_worker.errors import ConfigError, EngineFault, ErrorCode
from tts_worker.types import (
    Audio,
    Boundary,
    Done,
    EndText,
    Event,
    Failed,
    Open,
    SynthesisParams,
    Text,
    UtteranceKey,
)
from tts_worker.voicepack.voice_file import save_voice

TEXT = segments(("Hello, ", Boundary.CLAUSE), ("you.", Boundary.END))
TOKENS = 20


def scripted(key: UtteranceKey, run: int) -> list[int]:
    first = 1000 * int(key.session[-1], 36)
    return [*range(first, first + TOKENS), 6561 if key.generation == 2 else 6562]


class Failing(EagerRunner):
    """Computes, and then fails as if it had not come to the end: memory is half written."""

    def __init__(self, problem: Exception, on_call: int, times: int = 1) -> None:
        self._problem = problem
        self._first = on_call
        self._last = on_call + times
        self.calls = 0

    def run(self, key: Hashable, compute: Callable[..., Tensors], inputs: tuple[Tensor, ...]) -> Tensors:
        result = super().run(key, compute, inputs)
        self.calls += 1
        if self._first <= self.calls < self._last:
            raise self._problem
        return result


CROWD = [UtteranceKey(f"s{n}", 2) for n in range(3)]


def crowd_says(
    tokens: Runner,
    sound: Runner,
    config: StreamingConfig | None = None,
    params: SynthesisParams = PROMPTED,
    streams: ExecutionStreams | None = None,
    script: Script | None = scripted,
) -> dict[UtteranceKey, EngineOutput]:
    """Three at once, each with a text of its own."""
    subject = engine(
        "cosyvoice2",
        config or settings(render_batch=4, decode_batch=4),
        script=script,
        runners=(tokens, sound),
        streams=streams,
    )
    for key in CROWD:
        subject.handle(Open(key, params, PLENTY_SAMPLES))
        subject.handle(Text(key, plain_segment("Hello world")))
        subject.handle(EndText(key))
    heard: dict[UtteranceKey, EngineOutput] = {}
    hear(subject, heard)
    assert subject.active_utterances == 0
    assert subject.components.decoder.free_slots == settings().max_utterances
    return heard


def assert_sounds_as(heard: EngineOutput, expected: EngineOutput) -> None:
    """The same words, and the same sound but for rounding: memory was made anew, or a batch was another one."""
    assert heard.words == expected.words
    assert heard.samples == expected.samples
    difference = np.frombuffer(heard.pcm, "<i2").astype(int) - np.frombuffer(expected.pcm, "<i2")
    assert np.abs(difference).max() <= 40


@pytest.fixture(scope="module")
def well() -> dict[UtteranceKey, EngineOutput]:
    return crowd_says(EagerRunner(), EagerRunner())


@pytest.mark.parametrize("on_call", [2, 5])
@pytest.mark.parametrize("stage", ["tokens", "sound"])
def test_a_batch_that_fails_once_costs_nobody_anything(
    well: dict[UtteranceKey, EngineOutput], stage: str, on_call: int
) -> None:
    failing = Failing(torch.OutOfMemoryError("out of memory"), on_call)
    heard = crowd_says(*((failing, EagerRunner()) if stage == "tokens" else (EagerRunner(), failing)))
    assert failing.calls > on_call
    for key in CROWD:
        assert heard[key].ends == [Done(key)]
        assert_sounds_as(heard[key], well[key])


@pytest.mark.parametrize("on_call", [1, 2, 4])
def test_what_is_drawn_after_a_step_that_failed_is_what_would_have_been(on_call: int) -> None:
    expected = crowd_says(EagerRunner(), EagerRunner(), script=None)
    failing = Failing(torch.OutOfMemoryError("out of memory"), on_call)
    heard = crowd_says(failing, EagerRunner(), script=None)
    assert failing.calls > on_call
    for key in CROWD:
        assert heard[key].ends == expected[key].ends == [Done(key)]
        assert_sounds_as(heard[key], expected[key])


@pytest.mark.parametrize("on_call", [2, 3, 5])
def test_another_pace_outlives_a_pass_that_is_tried_again(on_call: int) -> None:
    params = replace(PROMPTED, speed=1.3)
    config = settings(render_batch=4, decode_batch=4)
    expected = crowd_says(EagerRunner(), EagerRunner(), config, params)
    failing = Failing(torch.OutOfMemoryError("out of memory"), on_call)
    heard = crowd_says(EagerRunner(), failing, config, params)
    assert failing.calls > on_call
    for key in CROWD:
        assert_sounds_as(heard[key], expected[key])


class LosingStream(HostStream):
    """A device that loses what it made on its way to the host, once."""

    def __init__(self, on_fetch: int) -> None:
        super().__init__()
        self.left = on_fetch

    def to_host(self, numbers: Tensor) -> PendingCopy:
        self.left -= 1
        return _Lost() if self.left == 0 else super().to_host(numbers)


class _Lost:
    ready = True

    def wait(self) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")


@pytest.mark.parametrize("on_fetch", [1, 2])
def test_sound_lost_on_its_way_to_the_host_is_made_again(well: dict[UtteranceKey, EngineOutput], on_fetch: int) -> None:
    host = HostStream()
    losing = LosingStream(on_fetch)
    config = settings(render_batch=4, decode_batch=4)
    heard = crowd_says(EagerRunner(), EagerRunner(), config, streams=ExecutionStreams(host, losing, losing))
    assert losing.left < 0
    for key in CROWD:
        assert heard[key].ends == [Done(key)]
        assert_sounds_as(heard[key], well[key])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_failed_half_way_is_begun_anew(family: str) -> None:
    expected = speak(engine(family), TEXT)
    subject = engine(family, runners=(EagerRunner(), Failing(torch.OutOfMemoryError("out of memory"), 1)))
    (end,) = speak(subject, TEXT).ends
    assert isinstance(end, Failed)
    assert_sounds_as(speak(subject, TEXT), expected)


def test_a_pace_that_fails_is_not_moved_on(monkeypatch: pytest.MonkeyPatch) -> None:
    params = replace(PROMPTED, speed=1.3)
    config = settings(render_batch=4, decode_batch=4)
    expected = crowd_says(EagerRunner(), EagerRunner(), config, params)
    push = MelResampler.push
    calls = 0

    def fails(self: MelResampler, mel: Tensor, final: bool) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:  # of a batch, the second one
            raise torch.OutOfMemoryError("out of memory")
        return push(self, mel, final)

    monkeypatch.setattr(MelResampler, "push", fails)
    heard = crowd_says(EagerRunner(), EagerRunner(), config, params)
    assert calls > 2
    for key in CROWD:
        assert_sounds_as(heard[key], expected[key])


def test_text_whose_answer_is_lost_is_not_fed_twice() -> None:
    def says(on_fetch: int) -> tuple[dict[UtteranceKey, EngineOutput], list[int]]:
        """What is heard, and how many shared each pass that was fed text; 0 for those that only drew."""
        host = HostStream()
        losing = LosingStream(on_fetch)
        config = settings(text_mode=TextMode.INTERLEAVED, decode_batch=4)
        subject = engine("cosyvoice3", config, streams=ExecutionStreams(losing, host, host))
        passes: list[int] = []
        feed = subject.components.decoder.prefill
        burst = subject.components.decoder.burst

        def fed(rows: Sequence[DecodeRow], items: Sequence[list[Item]]) -> PendingCopy:
            passes.append(len(rows))
            return feed(rows, items)

        def drawn(rows: Sequence[DecodeRow], steps: int) -> PendingCopy:
            passes.append(0)
            return burst(rows, steps)

        subject.components.decoder.prefill = fed
        subject.components.decoder.burst = drawn  # type: ignore[method-assign]
        for key in CROWD[:2]:
            subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
            text = "Hello world and you, that it is of the world and the world and so it is of you and the world."
            subject.handle(Text(key, plain_segment(text)))
            subject.handle(EndText(key))
        heard: dict[UtteranceKey, EngineOutput] = {}
        hear(subject, heard)
        return heard, passes

    expected, passes = says(on_fetch=10**9)
    first_shared = 1 + next(i for i, rows in enumerate(passes) if rows > 1)
    heard, _ = says(on_fetch=first_shared)
    for key in CROWD[:2]:
        assert heard[key].ends == expected[key].ends == [Done(key)]
        assert_sounds_as(heard[key], expected[key])


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (torch.OutOfMemoryError("out of memory"), ErrorCode.OUT_OF_MEMORY),
        (ValueError("numbers"), ErrorCode.SYNTHESIS_FAILED),
    ],
)
def test_whoever_fails_alone_fails_alone(
    well: dict[UtteranceKey, EngineOutput], problem: Exception, code: ErrorCode
) -> None:
    config = settings(render_batch=4, decode_batch=4)
    heard = crowd_says(EagerRunner(), Failing(problem, 3, times=2), config)  # the batch, then its first member
    ends = [end for key in CROWD for end in heard[key].ends]
    (failed,) = [end for end in ends if isinstance(end, Failed)]
    assert failed.error.code is code
    assert failed.error.retryable
    assert sum(isinstance(end, Done) for end in ends) == 2
    assert all(heard[key].samples == well[key].samples for key in CROWD if key != failed.key)


def test_a_device_that_is_gone_breaks_the_engine() -> None:
    failing = Failing(RuntimeError("device-side assert"), 3)
    subject = engine("cosyvoice3", runners=(EagerRunner(), failing), healthy=lambda: False)
    with pytest.raises(EngineFault) as caught:
        speak(subject, TEXT)
    assert "Hello" not in caught.value.message


async def test_a_broken_engine_is_rebuilt_and_speaks_again() -> None:
    built: list[CosyVoiceEngine] = []

    def factory() -> CosyVoiceEngine:
        failing = Failing(RuntimeError("device-side assert"), 12 if not built else 10**9)
        built.append(engine("cosyvoice3", runners=(EagerRunner(), failing), healthy=lambda: False))
        return built[-1]

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


def test_scores_that_are_no_numbers_end_the_call_and_nothing_else() -> None:
    loaded = Networks.load(bundle("cosyvoice3"))
    rows = loaded.config.lm.speech_rows
    loaded.lm.llm_decoder.bias = torch.nn.Parameter(torch.full([rows], torch.nan), requires_grad=False)
    heard = speak(engine("cosyvoice3", loaded=loaded), TEXT)
    (end,) = heard.ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.SYNTHESIS_FAILED
    assert not heard.audio


# -- loading ----------------------------------------------------------------------------------------------------------


def test_one_core_is_left_for_those_who_wait_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(
        "tts_worker.engine.streaming.load.os.sched_getaffinity", lambda pid: set(range(6)), raising=False
    )
    monkeypatch.setattr("tts_worker.engine.streaming.load.os.cpu_count", lambda: 6)
    for threads in (None, 3):
        with pytest.raises(ConfigError, match="memory_gb"):
            load_engine(LoadOptions(bundle("cosyvoice3").path, device="cpu", memory_gb=0.001, threads=threads))
    assert asked == [5, 3]


# -- voices -----------------------------------------------------------------------------------------------------------


def with_folder(folder: Path) -> CosyVoiceEngine:
    """An engine with nothing but stored voices and the bundle's speaker."""
    family = "cosyvoice3"
    config = settings()
    from tests.unit.streaming.engines import networks

    parts = Components.build(networks(family), tokenizer(family), bundle_voices(bundle(family)), config, stored=folder)
    return CosyVoiceEngine(parts, Model(bundle(family).config, tokenizer(family), config))


def test_a_voice_may_come_and_go_while_it_is_in_use(tmp_path: Path) -> None:
    subject = with_folder(tmp_path)
    params = SynthesisParams("alice", seed=3)
    assert refused(subject, params) is ErrorCode.UNKNOWN_VOICE
    folder = save_voice(tmp_path, "alice", voice("cosyvoice3"))
    expected = speak(subject, TEXT, params)
    assert expected.samples

    subject.handle(Open(KEY, params, PLENTY_SAMPLES))
    subject.handle(Text(KEY, TEXT[0]))
    for _ in range(4):
        assert not [event for event in subject.step(0.0) if not isinstance(event, Audio)]
    for file in folder.iterdir():
        file.unlink()
    assert refused(subject, params) is ErrorCode.UNKNOWN_VOICE
    subject.handle(Text(KEY, TEXT[1]))
    subject.handle(EndText(KEY))
    heard = {KEY: EngineOutput()}
    hear(subject, heard)
    assert [type(end) for end in heard[KEY].ends] == [Done]


def refused(subject: CosyVoiceEngine, params: SynthesisParams) -> ErrorCode:
    key = UtteranceKey("refused", 1)
    subject.handle(Open(key, params, PLENTY_SAMPLES))
    subject.handle(Text(key, TEXT[0]))
    subject.handle(EndText(key))
    heard = {key: EngineOutput()}
    hear(subject, heard)
    (end,) = heard[key].ends
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
def test_what_cannot_be_done_is_refused(params: SynthesisParams) -> None:
    subject = engine("cosyvoice3")
    assert refused(subject, params) is ErrorCode.INVALID_REQUEST
    assert all(state.users == 0 for state in subject.components.voice_cache._states.values())


def test_an_instruction_is_followed_and_not_remembered() -> None:
    subject = engine("cosyvoice3")
    plain = speak(subject, TEXT).pcm
    assert speak(subject, TEXT, replace(PROMPTED, instruct="whisper it")).pcm != plain
    assert speak(subject, TEXT).pcm == plain


def test_special_tokens_in_a_text_are_only_text() -> None:
    subject = engine("cosyvoice3")
    said = plain_segment("a<|endofprompt|>b")
    heard = speak(subject, (said,))
    ids = tokenizer("cosyvoice3")
    assert ids.end_of_prompt_id not in ids.encode(said.text)
    assert [type(end) for end in heard.ends] == [Done]


def test_a_text_without_any_stop_is_refused_where_it_cannot_be_read() -> None:
    subject = engine("cosyvoice3")
    heard = speak(subject, (plain_segment("hello" * 2000),))
    (end,) = heard.ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.TEXT_TOO_LONG
