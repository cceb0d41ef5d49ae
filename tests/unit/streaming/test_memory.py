"""Memory that is scarce: who waits for it, who goes without, and that nobody keeps any."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.streaming.engines import KEY, PROMPTED, bundle, engine, hear, settings, speak, voice
from tests.unit.streaming.test_engine import Held
from tests.unit.streaming.test_faults import CROWD, crowd_says
from tts_worker.engine.loop import EngineLoop, EngineState
from tts_worker.engine.streaming.engine import CosyVoiceEngine
from tts_worker.engine.streaming.graphs import EagerRunner, FakeGraphRunner, Runner, Tensors
from tts_worker.engine.streaming.load import LoadOptions, load_engine
from tts_worker.engine.streaming.utterance import plain_segment
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
    SynthesisParams,
    Text,
    UtteranceKey,
)

TEXT = segments(("Hello, ", Boundary.CLAUSE), ("you.", Boundary.END))


def long_script(tokens: int) -> Callable[[UtteranceKey, int], list[int]]:
    return lambda key, run: [*(i * 13 % 6561 for i in range(tokens)), 6562]


def test_who_finds_no_memory_waits_for_who_has_it() -> None:
    subject = engine("cosyvoice3", settings(pages=8), script=long_script(100))
    keys = [UtteranceKey("s", n) for n in range(4)]
    heard: dict[UtteranceKey, EngineOutput] = {}
    for key in keys:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, plain_segment("Hello world and you, that it is of the world")))
        subject.handle(EndText(key))
    hear(subject, heard)
    assert [heard[key].ends for key in keys] == [[Done(key)] for key in keys]
    assert {heard[key].samples for key in keys} == {100 * 960}


def test_sound_that_no_memory_could_hold_ends_with_a_clear_failure() -> None:
    subject = engine("cosyvoice3", settings(pages=5), script=long_script(300))
    heard = speak(subject, (plain_segment("Hello"),))
    (end,) = heard.ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.OUT_OF_MEMORY
    assert subject.active_utterances == 0
    assert speak(engine("cosyvoice3", settings(pages=5)), (plain_segment("Hello"),)).samples


def test_memory_too_small_to_speak_is_a_setting_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memory_gb"):
        load_engine(LoadOptions(bundle("cosyvoice3").path, memory_gb=0.001))
    with pytest.raises(ConfigError, match="CUDA"):
        load_engine(LoadOptions(bundle("cosyvoice3").path, device="cuda:7"))


def test_a_cancel_while_others_wait_lets_them_go_on() -> None:
    subject = engine("cosyvoice3", settings(pages=5), script=long_script(60))
    first, second = (UtteranceKey("s", n) for n in range(2))
    for key in (first, second):
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES if key == second else 10))
        subject.handle(Text(key, plain_segment("Hello world and you, that it is")))
        subject.handle(EndText(key))
    heard: dict[UtteranceKey, EngineOutput] = {}
    for _ in range(40):
        for event in subject.step(0.0):
            assert isinstance(event, Audio)
            heard.setdefault(event.key, EngineOutput()).audio.append(event)
    subject.handle(Cancel(first))
    hear(subject, heard)
    assert heard[second].ends == [Done(second)]


# -- voices -----------------------------------------------------------------------------------------------------------


def test_prompts_that_nobody_uses_make_room_for_others() -> None:
    voices = {f"v{n}": voice("cosyvoice3", 60, n) for n in range(5)}
    subject = engine("cosyvoice3", settings(cached_voices=2), voices=voices)
    sounds = [speak(subject, TEXT, SynthesisParams(name)).pcm for name in voices]
    assert subject.components.voice_cache.prepared_voices == 2
    assert len(set(sounds)) == 5
    assert speak(subject, TEXT, SynthesisParams("v0")).pcm == sounds[0]


def test_idle_prompts_give_their_pages_to_a_new_one() -> None:
    voices = {f"v{n}": voice("cosyvoice3", 200, n) for n in range(3)}
    subject = engine("cosyvoice3", settings(cached_voices=4, pages=20), voices=voices, script=long_script(20))
    for name in voices:
        assert speak(subject, (plain_segment("Hello"),), SynthesisParams(name)).ends == [Done(KEY)]
    assert subject.components.voice_cache.prepared_voices == 2


def two_voices(pages: int, tokens: int) -> tuple[CosyVoiceEngine, dict[UtteranceKey, SynthesisParams]]:
    """The second one's prompt takes five pages, the first one's one."""
    voices = {f"v{n}": voice("cosyvoice3", length, n) for n, length in enumerate((60, 150))}
    lengths = {"s0": 150, "s1": tokens}
    subject = engine(
        "cosyvoice3",
        settings(pages=pages),
        voices=voices,
        script=lambda key, run: [*(i * 13 % 6561 for i in range(lengths[key.session])), 6562],
    )
    return subject, {UtteranceKey(f"s{n}", 1): SynthesisParams(name) for n, name in enumerate(voices)}


@pytest.mark.parametrize("left", [0, 2, 4])
def test_a_prompt_waits_for_memory_as_sound_does(left: int) -> None:
    subject, calls = two_voices(pages=9, tokens=20)
    heard: dict[UtteranceKey, EngineOutput] = {key: EngineOutput() for key in calls}
    for key, params in calls.items():
        subject.handle(Open(key, params, PLENTY_SAMPLES))
        subject.handle(Text(key, plain_segment("Hello world and you, that it is of the world")))
        subject.handle(EndText(key))
        while not heard[key].ends and subject.components.pool.free_pages > left:
            for event in subject.step(0.0):
                if isinstance(event, Audio):
                    heard[event.key].audio.append(event)
                else:
                    heard[event.key].ends.append(event)  # type: ignore[arg-type]
    hear(subject, heard)
    assert [heard[key].ends for key in calls] == [[Done(key)] for key in calls]


def opened(subject: CosyVoiceEngine, key: UtteranceKey, params: SynthesisParams) -> None:
    subject.handle(Open(key, params, PLENTY_SAMPLES))
    subject.handle(Text(key, plain_segment("Hello world and you, that it is of the world")))
    subject.handle(EndText(key))


def test_two_prompts_for_which_there_is_no_memory_do_not_wait_for_each_other() -> None:
    voices = {f"v{n}": voice("cosyvoice3", 200, n) for n in range(2)}  # seven pages each
    subject = engine("cosyvoice3", settings(pages=20), voices=voices, script=long_script(20))
    pool = subject.components.pool
    voice_cache = subject.components.voice_cache
    keys = [UtteranceKey(f"s{n}", 1) for n in range(2)]
    for key, name in zip(keys, voices, strict=True):
        opened(subject, key, SynthesisParams(name))
        while name not in voice_cache._states or voice_cache.unprepared_pages(voice_cache._states[name]) > 4:
            subject.step(0.0)
        subject.handle(Hold(key))
    while pool.free_pages > 3:  # somebody else took more than his text had told
        pool._pages.pop()
    for key in keys:
        subject.handle(Release(key))
    heard: dict[UtteranceKey, EngineOutput] = {}
    hear(subject, heard)
    ends = sorted((heard[key].ends[0] for key in keys), key=lambda end: isinstance(end, Failed))
    assert isinstance(ends[0], Done)
    assert isinstance(ends[1], Failed)
    assert ends[1].error.code is ErrorCode.OUT_OF_MEMORY
    assert subject.active_utterances == 0


def test_what_a_prompt_will_still_take_is_not_given_to_another() -> None:
    voices = {f"v{n}": voice("cosyvoice3", 150, n) for n in range(2)}  # five pages each
    subject = engine("cosyvoice3", settings(pages=8), voices=voices, script=long_script(20))
    first, second = keys = [UtteranceKey(f"s{n}", 1) for n in range(2)]
    opened(subject, first, SynthesisParams("v0"))
    while subject.components.pool.free_pages > 7:
        subject.step(0.0)
    subject.handle(Hold(first))
    opened(subject, second, SynthesisParams("v1"))
    heard: dict[UtteranceKey, EngineOutput] = {}
    hear(subject, heard)
    assert not heard
    assert subject.components.pool.free_pages == 7
    subject.handle(Release(first))
    hear(subject, heard)
    assert [heard[key].ends for key in keys] == [[Done(key)] for key in keys]


def test_a_prompt_that_is_there_lets_others_go_on() -> None:
    """Even if whoever brought it then takes nothing."""
    voices = {"short": voice("cosyvoice3", 60), "long": voice("cosyvoice3", 150, 1)}  # one page and five
    subject = engine("cosyvoice3", settings(pages=8), voices=voices, script=long_script(20))
    voice_cache = subject.components.voice_cache
    waiting = UtteranceKey("waiting", 1)
    paused = UtteranceKey("paused", 1)
    opened(subject, paused, SynthesisParams("long"))
    while not voice_cache.prepared_voices or voice_cache.unprepared_pages(voice_cache._states["long"]) > 3:
        subject.step(0.0)
    subject.handle(Hold(paused))
    opened(subject, waiting, SynthesisParams("short"))
    heard: dict[UtteranceKey, EngineOutput] = {}
    hear(subject, heard)
    assert not heard, "what is left does not suffice for both, as far as the texts tell"
    subject.handle(Release(paused))
    while voice_cache.needs_prepare(voice_cache._states["long"]):
        subject.step(0.0)
    subject.handle(Hold(paused))
    hear(subject, heard)
    assert heard[waiting].ends == [Done(waiting)]


def test_nobody_waits_for_whoever_turns_out_to_say_nothing() -> None:
    voices = {f"v{n}": voice("cosyvoice3", 150, n) for n in range(2)}  # five pages each
    subject = engine("cosyvoice3", settings(pages=8), voices=voices, script=lambda key, run: [6562])
    silent = UtteranceKey("silent", 1)
    waiting = UtteranceKey("waiting", 1)
    subject.handle(Open(silent, SynthesisParams("v0"), PLENTY_SAMPLES))
    subject.handle(Text(silent, plain_segment("Hello")))  # and the call stays open
    while subject.components.pool.free_pages > 3:
        subject.step(0.0)
    subject.handle(Hold(silent))
    opened(subject, waiting, SynthesisParams("v1"))
    heard: dict[UtteranceKey, EngineOutput] = {}
    hear(subject, heard)
    assert not heard
    subject.handle(Release(silent))
    hear(subject, heard)
    (end,) = heard[waiting].ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.OUT_OF_MEMORY


# -- nothing is kept --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", [EagerRunner, FakeGraphRunner])
def test_a_closed_engine_gives_its_memory_back_without_a_collector(runner: type[Runner]) -> None:
    """A worker freezes its heap once it has started: what then lies in a cycle would stay for good."""
    small = settings(lm_tokens=256, max_passage_s=4, pages=20, decode_batch=1, checked=False)
    subject = engine("cosyvoice3", small, runners=(runner(), runner()))
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
def test_a_pass_without_memory_lets_go_of_what_it_had_before_it_is_tried_again(stage: str, overlap: bool) -> None:
    class Activations:
        """What a pass has made when it fails."""

    class Full(EagerRunner):
        made: weakref.ref[Activations] | None = None
        kept: bool | None = None

        def run(self, key: Hashable, compute: Callable[..., Tensors], inputs: tuple[Tensor, ...]) -> Tensors:
            assert isinstance(key, tuple)
            if key[0] == stage and self.made is None and inputs[0].shape[0] > 1:
                activations = Activations()
                self.made = weakref.ref(activations)
                raise torch.OutOfMemoryError("out of memory")
            if key[0] == stage and self.made is not None and self.kept is None:
                self.kept = self.made() is not None
            return super().run(key, compute, inputs)

    full = Full()
    gc.collect()
    gc.disable()
    try:
        heard = crowd_says(full, full, settings(render_batch=4, decode_batch=4, overlap=overlap))
    finally:
        gc.enable()
    assert all(heard[key].ends == [Done(key)] for key in CROWD)
    assert full.kept is False


def test_a_slot_that_could_not_be_opened_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = engine("cosyvoice2")
    speak(subject, TEXT)
    free = Held(subject).now
    memory = subject.components.pool._estimator
    copy = memory.copy_tails
    calls = 0

    def fails(source: int, target: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise MemoryError
        copy(source, target)

    monkeypatch.setattr(memory, "copy_tails", fails)
    (end,) = speak(subject, TEXT).ends
    assert isinstance(end, Failed)
    assert Held(subject).now == free


def test_a_slot_given_back_while_another_is_opened_is_not_mistaken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's thread gives back while the flow's thread takes."""
    pool = engine("cosyvoice3").components.pool
    leaving = pool.open()
    free = pool.free_slots
    memory = pool._estimator
    reset = memory.reset

    def meanwhile(slots: Tensor) -> None:
        pool.close(leaving)
        reset(slots)

    monkeypatch.setattr(memory, "reset", meanwhile)
    taken = [pool.open() for _ in range(free + 1)]
    assert len({state.slot for state in taken}) == free + 1


@pytest.mark.parametrize("stage", ["flow", "vocoder", "decode"])
async def test_a_broken_engines_memory_is_free_before_another_one_is_built(stage: str) -> None:
    parts: list[weakref.ref[object]] = []
    alive: list[bool] = []

    class Breaks(EagerRunner):
        def run(self, key: Hashable, compute: Callable[..., Tensors], inputs: tuple[Tensor, ...]) -> Tensors:
            result = super().run(key, compute, inputs)
            if warm.is_set() and not alive and key[0] == stage:  # type: ignore[index]
                raise RuntimeError("device-side assert")
            return result

    def factory() -> CosyVoiceEngine:
        alive.extend(part() is not None for part in parts)
        subject = engine("cosyvoice3", runners=(Breaks(), Breaks()), healthy=lambda: False)
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
