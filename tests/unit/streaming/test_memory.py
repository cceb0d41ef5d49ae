"""Scarce memory: admission, eviction, and release without leaks."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from torch import Tensor

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.streaming.engines import KEY, PROMPTED, bundle, engine, run_until_idle, settings, synthesize, voice
from tests.unit.streaming.test_engine import ResourceUsage
from tests.unit.streaming.test_faults import CROWD, synthesize_crowd
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner, GraphRunner, Key, Tensors
from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine
from tts_worker.engine.loop import EngineLoop, EngineState
from tts_worker.errors import ConfigError, ErrorCode
from tts_worker.types import (
    Audio,
    Boundary,
    Cancel,
    Done,
    EndText,
    Event,
    Failed,
    Hold,
    Open,
    Release,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)

TEXT = segments(("Hello, ", Boundary.CLAUSE), ("you.", Boundary.END))


def long_script(tokens: int) -> Callable[[UtteranceKey, int], list[int]]:
    return lambda key, run: [*(i * 13 % 6561 for i in range(tokens)), 6562]


def test_utterances_wait_for_free_pages() -> None:
    subject = engine("cosyvoice3", settings(pages=8), script=long_script(100))
    keys = [UtteranceKey("s", n) for n in range(4)]
    outputs: dict[UtteranceKey, EngineOutput] = {}
    for key in keys:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, Segment.whole("Hello world and you, that it is of the world")))
        subject.handle(EndText(key))
    run_until_idle(subject, outputs)
    assert [outputs[key].ends for key in keys] == [[Done(key)] for key in keys]
    assert {outputs[key].samples for key in keys} == {100 * 960}


def test_audio_exceeding_memory_fails_out_of_memory() -> None:
    subject = engine("cosyvoice3", settings(pages=5), script=long_script(300))
    output = synthesize(subject, (Segment.whole("Hello"),))
    (end,) = output.ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.OUT_OF_MEMORY
    assert not subject.sequences
    assert synthesize(engine("cosyvoice3", settings(pages=5)), (Segment.whole("Hello"),)).samples


def test_insufficient_memory_setting_is_a_config_error(tmp_path: Path) -> None:
    for memory_gb in (0.001, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="memory_gb"):
            load_engine(LoadOptions(bundle("cosyvoice3").path, memory_gb=memory_gb))
    with pytest.raises(ConfigError, match="CUDA"):
        load_engine(LoadOptions(bundle("cosyvoice3").path, device="cuda:7"))


@pytest.mark.parametrize("name", ["threads", "max_utterances", "stride_chunks", "decode_batch", "render_batch"])
def test_counts_below_one_are_config_errors(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name}: must be at least 1, not 0"):
        load_engine(replace(LoadOptions(tmp_path), **{name: 0}))


def test_first_tokens_beyond_a_chunk_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match="first_tokens: must be at most 25, the tokens of a chunk, not 26"):
        load_engine(LoadOptions(bundle("cosyvoice3").path, first_tokens=26))


def test_cancel_unblocks_utterances_waiting_for_pages() -> None:
    subject = engine("cosyvoice3", settings(pages=5), script=long_script(60))
    first, second = (UtteranceKey("s", n) for n in range(2))
    for key in (first, second):
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES if key == second else 10))
        subject.handle(Text(key, Segment.whole("Hello world and you, that it is")))
        subject.handle(EndText(key))
    outputs: dict[UtteranceKey, EngineOutput] = {}
    for _ in range(40):
        for event in subject.step(0.0):
            assert isinstance(event, Audio)
            outputs.setdefault(event.key, EngineOutput()).audio.append(event)
    subject.handle(Cancel(first))
    run_until_idle(subject, outputs)
    assert outputs[second].ends == [Done(second)]


# -- voices -----------------------------------------------------------------------------------------------------------


def test_unused_prompts_are_evicted() -> None:
    voices = {f"v{n}": voice("cosyvoice3", 60, n) for n in range(5)}
    subject = engine("cosyvoice3", settings(cached_voices=2), voices=voices)
    pcm_by_voice = [synthesize(subject, TEXT, SynthesisParams(name)).pcm for name in voices]
    assert subject.components.voice_cache.prepared_voices == 2
    assert len(set(pcm_by_voice)) == 5
    assert synthesize(subject, TEXT, SynthesisParams("v0")).pcm == pcm_by_voice[0]


def test_pages_of_idle_prompts_are_reused() -> None:
    voices = {f"v{n}": voice("cosyvoice3", 200, n) for n in range(3)}
    subject = engine("cosyvoice3", settings(cached_voices=4, pages=20), voices=voices, script=long_script(20))
    for name in voices:
        assert synthesize(subject, (Segment.whole("Hello"),), SynthesisParams(name)).ends == [Done(KEY)]
    assert subject.components.voice_cache.prepared_voices == 2


def engine_with_two_voices(pages: int, tokens: int) -> tuple[CosyVoiceEngine, dict[UtteranceKey, SynthesisParams]]:
    """Return an engine with two voices: the first prompt takes one page, the second five."""
    voices = {f"v{n}": voice("cosyvoice3", length, n) for n, length in enumerate((60, 150))}
    lengths = {"s0": 150, "s1": tokens}
    subject = engine(
        "cosyvoice3",
        settings(pages=pages),
        voices=voices,
        script=lambda key, run: [*(i * 13 % 6561 for i in range(lengths[key.session])), 6562],
    )
    return subject, {UtteranceKey(f"s{n}", 1): SynthesisParams(name) for n, name in enumerate(voices)}


@pytest.mark.parametrize("free_pages_left", [0, 2, 4])
def test_prompt_waits_for_free_pages(free_pages_left: int) -> None:
    subject, calls = engine_with_two_voices(pages=9, tokens=20)
    outputs: dict[UtteranceKey, EngineOutput] = {key: EngineOutput() for key in calls}
    for key, params in calls.items():
        subject.handle(Open(key, params, PLENTY_SAMPLES))
        subject.handle(Text(key, Segment.whole("Hello world and you, that it is of the world")))
        subject.handle(EndText(key))
        while not outputs[key].ends and subject.components.pool.free_pages > free_pages_left:
            for event in subject.step(0.0):
                if isinstance(event, Audio):
                    outputs[event.key].audio.append(event)
                else:
                    outputs[event.key].ends.append(event)  # type: ignore[arg-type]
    run_until_idle(subject, outputs)
    assert [outputs[key].ends for key in calls] == [[Done(key)] for key in calls]


def open_utterance(subject: CosyVoiceEngine, key: UtteranceKey, params: SynthesisParams) -> None:
    subject.handle(Open(key, params, PLENTY_SAMPLES))
    subject.handle(Text(key, Segment.whole("Hello world and you, that it is of the world")))
    subject.handle(EndText(key))


def test_two_blocked_prompts_do_not_deadlock() -> None:
    voices = {f"v{n}": voice("cosyvoice3", 200, n) for n in range(2)}  # seven pages each
    subject = engine("cosyvoice3", settings(pages=20), voices=voices, script=long_script(20))
    pool = subject.components.pool
    voice_cache = subject.components.voice_cache
    keys = [UtteranceKey(f"s{n}", 1) for n in range(2)]
    for key, name in zip(keys, voices, strict=True):
        open_utterance(subject, key, SynthesisParams(name))
        while name not in voice_cache.states or voice_cache.states[name].pages_ahead > 4:
            subject.step(0.0)
        subject.handle(Hold(key))
    while pool.free_pages > 3:  # simulates another utterance that exceeded its estimate
        pool._pages.pop()
    for key in keys:
        subject.handle(Release(key))
    outputs: dict[UtteranceKey, EngineOutput] = {}
    run_until_idle(subject, outputs)
    ends = sorted((outputs[key].ends[0] for key in keys), key=lambda end: isinstance(end, Failed))
    assert isinstance(ends[0], Done)
    assert isinstance(ends[1], Failed)
    assert ends[1].error.code is ErrorCode.OUT_OF_MEMORY
    assert not subject.sequences


def test_pages_of_a_started_prompt_are_reserved() -> None:
    voices = {f"v{n}": voice("cosyvoice3", 150, n) for n in range(2)}  # five pages each
    subject = engine("cosyvoice3", settings(pages=8), voices=voices, script=long_script(20))
    first, second = keys = [UtteranceKey(f"s{n}", 1) for n in range(2)]
    open_utterance(subject, first, SynthesisParams("v0"))
    while subject.components.pool.free_pages > 7:
        subject.step(0.0)
    subject.handle(Hold(first))
    open_utterance(subject, second, SynthesisParams("v1"))
    outputs: dict[UtteranceKey, EngineOutput] = {}
    run_until_idle(subject, outputs)
    assert not outputs
    assert subject.components.pool.free_pages == 7
    subject.handle(Release(first))
    run_until_idle(subject, outputs)
    assert [outputs[key].ends for key in keys] == [[Done(key)] for key in keys]


def test_prepared_prompt_unblocks_others() -> None:
    """Even if its own utterance is held."""
    voices = {"short": voice("cosyvoice3", 60), "long": voice("cosyvoice3", 150, 1)}  # one page and five
    subject = engine("cosyvoice3", settings(pages=8), voices=voices, script=long_script(20))
    voice_cache = subject.components.voice_cache
    waiting = UtteranceKey("waiting", 1)
    paused = UtteranceKey("paused", 1)
    open_utterance(subject, paused, SynthesisParams("long"))
    while not voice_cache.prepared_voices or voice_cache.states["long"].pages_ahead > 3:
        subject.step(0.0)
    subject.handle(Hold(paused))
    open_utterance(subject, waiting, SynthesisParams("short"))
    outputs: dict[UtteranceKey, EngineOutput] = {}
    run_until_idle(subject, outputs)
    assert not outputs, "the free pages do not suffice for the estimates of both"
    subject.handle(Release(paused))
    while not voice_cache.states["long"].is_prepared:
        subject.step(0.0)
    subject.handle(Hold(paused))
    run_until_idle(subject, outputs)
    assert outputs[waiting].ends == [Done(waiting)]


def test_silent_utterance_does_not_block_others() -> None:
    voices = {f"v{n}": voice("cosyvoice3", 150, n) for n in range(2)}  # five pages each
    subject = engine("cosyvoice3", settings(pages=8), voices=voices, script=lambda key, run: [6562])
    silent = UtteranceKey("silent", 1)
    waiting = UtteranceKey("waiting", 1)
    subject.handle(Open(silent, SynthesisParams("v0"), PLENTY_SAMPLES))
    subject.handle(Text(silent, Segment.whole("Hello")))  # the text does not end
    while subject.components.pool.free_pages > 3:
        subject.step(0.0)
    subject.handle(Hold(silent))
    open_utterance(subject, waiting, SynthesisParams("v1"))
    outputs: dict[UtteranceKey, EngineOutput] = {}
    run_until_idle(subject, outputs)
    assert not outputs
    subject.handle(Release(silent))
    run_until_idle(subject, outputs)
    (end,) = outputs[waiting].ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.OUT_OF_MEMORY


# -- release ----------------------------------------------------------------------------------------------------------


RUNNERS = "tts_worker.engine.cosyvoice.execution.graph_runner:EagerRunner", "tests.fakes.graph_runner:FakeGraphRunner"


@pytest.mark.parametrize("runner_name", RUNNERS)
def test_closed_engine_frees_memory_without_gc(runner_name: str) -> None:
    """A worker freezes its heap at the start, so a reference cycle in it would never be collected."""
    runner: type[GraphRunner] = resolve_name(runner_name)
    small = settings(lm_tokens=256, max_segment_s=4, pages=20, decode_batch=1, checked=False)
    subject = engine("cosyvoice3", small, graph_runners=(runner(), runner()))
    subject.warm_up()
    memory = (
        weakref.ref(subject.components.pool),
        weakref.ref(subject.components.decoder),
        weakref.ref(subject.components.renderer),
    )
    gc.disable()
    try:
        subject.close()
        del subject
        assert [part() for part in memory] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stage", ["flow", "vocoder", "decode"])
def test_failed_pass_frees_activations_before_retry(stage: str, overlap: bool) -> None:
    class Activations:
        """Represents the tensors of a failed pass."""

    class Full(EagerRunner):
        made: weakref.ref[Activations] | None = None
        leaked: bool | None = None

        def run(self, key: Key, compute: Callable[..., Tensors], inputs: tuple[Tensor, ...]) -> Tensors:
            if key[0] == stage and self.made is None and inputs[0].shape[0] > 1:
                activations = Activations()
                self.made = weakref.ref(activations)
                raise torch.OutOfMemoryError("out of memory")
            if key[0] == stage and self.made is not None and self.leaked is None:
                self.leaked = self.made() is not None
            return super().run(key, compute, inputs)

    full = Full()
    gc.collect()
    gc.disable()
    try:
        outputs = synthesize_crowd(full, full, settings(render_batch=4, decode_batch=4, overlap=overlap))
    finally:
        gc.enable()
    assert all(outputs[key].ends == [Done(key)] for key in CROWD)
    assert full.leaked is False


def test_slot_is_freed_when_opening_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = engine("cosyvoice2")
    synthesize(subject, TEXT)
    free = ResourceUsage.of(subject)
    memory = subject.components.pool.estimator
    copy = memory.copy_tails
    calls = 0

    def fails(source: int, target: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise MemoryError
        copy(source, target)

    monkeypatch.setattr(memory, "copy_tails", fails)
    (end,) = synthesize(subject, TEXT).ends
    assert isinstance(end, Failed)
    assert ResourceUsage.of(subject) == free


def test_concurrent_slot_close_and_open_do_not_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine thread returns a slot while the flow thread takes one."""
    pool = engine("cosyvoice3").components.pool
    leaving = pool.open()
    free = pool.free_slots
    memory = pool.estimator
    reset = memory.reset

    def meanwhile(slots: Tensor) -> None:
        pool.close(leaving)
        reset(slots)

    monkeypatch.setattr(memory, "reset", meanwhile)
    taken = [pool.open() for _ in range(free + 1)]
    assert len({state.slot for state in taken}) == free + 1


@pytest.mark.parametrize("stage", ["flow", "vocoder", "decode"])
async def test_faulted_engine_is_freed_before_rebuild(stage: str) -> None:
    parts: list[weakref.ref[object]] = []
    alive: list[bool] = []

    class Panic(BaseException):
        """An error that no pass handles, as a panic of a Rust extension."""

    class Breaks(EagerRunner):
        def run(self, key: Key, compute: Callable[..., Tensors], inputs: tuple[Tensor, ...]) -> Tensors:
            result = super().run(key, compute, inputs)
            if warm.is_set() and not alive and key[0] == stage:
                raise Panic
            return result

    def factory() -> CosyVoiceEngine:
        alive.extend(part() is not None for part in parts)
        subject = engine("cosyvoice3", graph_runners=(Breaks(), Breaks()))
        if not parts:
            parts.extend([weakref.ref(subject.components.pool), weakref.ref(subject.components.decoder)])
        return subject

    warm = asyncio.Event()
    loop = EngineLoop(factory, restart_backoff_s=(0.0, 0.0))
    came = asyncio.Queue[Event]()
    loop.subscribe("test", came.put_nowait)
    await loop.start()
    gc.collect()
    gc.disable()
    try:
        warm.set()
        again: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        loop.on_state(lambda state: again.set_result(None) if state is EngineState.READY else None)
        loop.post(Open(KEY, PROMPTED, PLENTY_SAMPLES))
        for segment in TEXT:
            loop.post(Text(KEY, segment))
        loop.post(EndText(KEY))
        while isinstance(await came.get(), Audio):
            pass
        await again
        assert alive == [False, False]
    finally:
        gc.enable()
        await loop.stop()
