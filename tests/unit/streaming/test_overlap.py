"""The flow in a lane of its own, beside tokens and vocoder: the same sound, sooner, and nothing left behind."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.cosyvoice.bundles import tiny
from tests.unit.streaming.engines import FAMILIES, KEY, PROMPTED, bundle, engine, hear, leave, settings, speak
from tests.unit.streaming.test_engine import Held
from tests.unit.streaming.test_faults import CROWD, Failing, assert_sounds_as, scripted
from tts_worker.engine.streaming.engine import CosyVoiceEngine
from tts_worker.engine.streaming.graphs import EagerRunner, Runner
from tts_worker.engine.streaming.load import LoadOptions, load_engine
from tts_worker.engine.streaming.render import FlowOutput, RenderRequest, VocoderOutput
from tts_worker.engine.streaming.streams import ExecutionStreams, HostStream, StreamFuture, ThreadStream, streams_for
from tts_worker.engine.streaming.utterance import plain_segment
from tts_worker.types import Boundary, Cancel, Done, EndText, Failed, Hold, Open, Release, Text, UtteranceKey

T = TypeVar("T")
TEXT = segments(("Hello world and ", Boundary.CLAUSE), ("you.", Boundary.SENTENCE), (" So it is.", Boundary.END))
LONG = segments(("Hello world and you, that it is", Boundary.END))


def long_script(key: UtteranceKey, run: int) -> Sequence[int]:
    return [*range(150), 6562]


class _Seen(StreamFuture[T]):
    """RenderRequest that is over, to whoever looks so often."""

    def __init__(self, work: Callable[[], T], looks: int) -> None:
        super().__init__(work)
        self._looks = looks
        self.run()

    @property
    def is_done(self) -> bool:
        self._looks -= 1
        return self._looks < 0


class SlowStream(HostStream):
    """A lane whose work is through after so many looks, or when somebody waits for it."""

    def __init__(self, looks: Sequence[int]) -> None:
        super().__init__()
        self._looks = looks
        self.begun = 0

    def submit(self, work: Callable[[], T]) -> StreamFuture[T]:
        self.begun += 1
        return _Seen(work, self._looks[self.begun % len(self._looks)])


def beside(flow: HostStream) -> ExecutionStreams:
    host = HostStream()
    return ExecutionStreams(host, flow, host)


def crowd(subject: CosyVoiceEngine, texts: Sequence[str] = ("Hello world",) * 3) -> dict[UtteranceKey, EngineOutput]:
    for key, text in zip(CROWD, texts, strict=True):
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, plain_segment(text)))
        subject.handle(EndText(key))
    heard: dict[UtteranceKey, EngineOutput] = {}
    hear(subject, heard)
    return heard


@pytest.fixture(scope="module")
def plain() -> dict[str, EngineOutput]:
    return {family: speak(engine(family), TEXT) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_thread_beside_says_the_same_to_the_bit(plain: dict[str, EngineOutput], family: str) -> None:
    subject = engine(family, settings(overlap=True))
    assert isinstance(subject.components.streams.flow, ThreadStream)
    for _ in range(2):
        heard = speak(subject, TEXT)
        assert heard.pcm == plain[family].pcm
        assert (heard.words, heard.ends) == (plain[family].words, plain[family].ends)
    alone = crowd(engine("cosyvoice2", script=scripted))
    together = crowd(engine("cosyvoice2", settings(overlap=True), script=scripted))
    assert [together[key].content for key in CROWD] == [alone[key].content for key in CROWD]
    subject.close()


@examples(deadline=None, max_examples=10)
@given(looks=st.lists(st.integers(0, 12), min_size=1, max_size=4), pause=st.sets(st.integers(0, 60), max_size=4))
def test_whenever_the_flow_is_through_nothing_changes(
    plain: dict[str, EngineOutput], looks: list[int], pause: set[int]
) -> None:
    subject = engine("cosyvoice3", streams=beside(SlowStream(looks)))
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    for segment in TEXT:
        subject.handle(Text(KEY, segment))
    subject.handle(EndText(KEY))
    heard = {KEY: EngineOutput()}
    for step in range(61):
        if step in pause:
            subject.handle(Hold(KEY))
            for _ in range(3):
                assert not subject.step(0.0), "nothing leaves while it is held"
            subject.handle(Release(KEY))
        for event in subject.step(0.0):
            (heard[KEY].ends if isinstance(event, Done) else heard[KEY].audio).append(event)  # type: ignore[attr-defined]
    hear(subject, heard)
    assert heard[KEY].pcm == plain["cosyvoice3"].pcm
    assert heard[KEY].words == plain["cosyvoice3"].words


def test_the_next_chunk_begins_before_the_vocoder_and_tokens_are_drawn_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = engine("cosyvoice3", script=long_script, streams=beside(SlowStream([10**9])))  # through when waited for
    renderer = subject.components.renderer
    done = list[tuple[str, int]]()
    flow = renderer.flow
    vocode = renderer.vocode
    monkeypatch.setattr(renderer, "flow", lambda works: (done.append(("flow", subject.timings.tokens)), flow(works))[1])
    monkeypatch.setattr(
        renderer,
        "vocode",
        lambda works, mels: (done.append(("vocoder", subject.timings.tokens)), vocode(works, mels))[1],
    )
    assert speak(subject, LONG).ends == [Done(KEY)]
    names = [name for name, _ in done]
    chunks = len(names) // 2
    assert chunks >= 5
    assert names == ["flow"] + ["flow", "vocoder"] * (chunks - 1) + ["vocoder"], "one ahead, and never two"
    drawn = [tokens for name, tokens in done if name == "flow"]
    assert drawn[1] >= drawn[0] + bundle("cosyvoice3").config.flow.chunk_tokens, "the language model did not wait"


@pytest.mark.parametrize("credit", [10, 20_000, 60_000])
def test_it_computes_no_more_than_without(credit: int) -> None:
    computed = []
    for streams in (None, beside(SlowStream([10**9]))):
        subject = engine("cosyvoice3", script=long_script, streams=streams)
        subject.handle(Open(KEY, PROMPTED, credit))
        subject.handle(Text(KEY, LONG[0]))
        subject.handle(EndText(KEY))
        hear(subject, {})
        computed.append((subject.components.renderer.flow_frames, subject.components.renderer.vocoder_frames))
    assert computed[0] == computed[1]


@pytest.mark.parametrize("looks", [[2], [10**9]])
@pytest.mark.parametrize("steps", [3, 8, 21])
def test_a_cancel_at_any_step_frees_everything(steps: int, looks: list[int]) -> None:
    subject = engine("cosyvoice2", streams=beside(SlowStream(looks)))
    speak(subject, TEXT)
    free = Held(subject).now
    leave(subject, TEXT[0], steps)
    assert Held(subject).now == free


@pytest.mark.parametrize("work", ["open", "advance"])
def test_a_listener_leaves_while_the_engine_waits_for_the_thread(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the thread still takes for him is given back, too."""
    subject = engine("cosyvoice3", settings(overlap=True), script=long_script)
    speak(subject, TEXT)
    free = Held(subject).now
    pool = subject.components.pool
    at_work = threading.Event()
    go_on = threading.Event()
    really = getattr(pool, work)

    def slowly(*given: object) -> object:
        at_work.set()
        assert go_on.wait(60)
        return really(*given)

    monkeypatch.setattr(pool, work, slowly)
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, LONG[0]))
    while not at_work.is_set():
        subject.step(0.0)
    subject.handle(Cancel(KEY))
    result = StreamFuture.result

    def waits(begun: StreamFuture[object]) -> object:
        go_on.set()  # not before the engine waits for it
        return result(begun)

    monkeypatch.setattr(StreamFuture, "result", waits)
    hear(subject, {})
    assert Held(subject).now == free
    subject.close()


def test_listeners_that_leave_a_thread_at_work_leave_nothing_behind() -> None:
    subject = engine("cosyvoice3", settings(overlap=True))
    expected = speak(subject, TEXT).pcm
    free = Held(subject).now
    rng = np.random.default_rng(3)
    for turn in range(40):
        key = UtteranceKey("s", turn)
        subject.handle(Open(key, PROMPTED, int(rng.integers(0, 60_000))))
        subject.handle(Text(key, TEXT[0]))
        for _ in range(int(rng.integers(0, 14))):
            subject.step(0.0)
        subject.handle(Cancel(key))
    assert speak(subject, TEXT).pcm == expected, "pages that were let go of while the flow wrote them"
    assert Held(subject).now == free
    subject.close()


@pytest.mark.parametrize("on_call", [2, 3, 5])
def test_a_batch_that_fails_once_costs_nobody_anything(on_call: int) -> None:
    """Calls of flow and vocoder in turn: either fails once, half-way."""
    batch = settings(render_batch=4, decode_batch=4)

    def says(sound: Runner) -> dict[UtteranceKey, EngineOutput]:
        subject = engine(
            "cosyvoice2", batch, script=scripted, runners=(EagerRunner(), sound), streams=beside(SlowStream([1, 4]))
        )
        return crowd(subject)

    failing = Failing(torch.OutOfMemoryError("out of memory"), on_call)
    well = says(EagerRunner())
    heard = says(failing)
    assert failing.calls > on_call
    for key in CROWD:
        assert heard[key].ends == [Done(key)]
        assert_sounds_as(heard[key], well[key])


@pytest.mark.parametrize("first", [2, 3, 5])
def test_whoever_fails_alone_fails_alone(first: int) -> None:
    def says(sound: Runner) -> dict[UtteranceKey, EngineOutput]:
        subject = engine(
            "cosyvoice2",
            settings(render_batch=4, decode_batch=4),
            script=scripted,
            runners=(EagerRunner(), sound),
            streams=beside(SlowStream([2])),
        )
        heard = crowd(subject)
        assert (subject.active_utterances, subject.components.decoder.free_slots) == (0, settings().max_utterances)
        return heard

    well = says(EagerRunner())
    heard = says(Failing(ValueError("numbers"), first, times=2))  # the batch, then one of its members
    failed = [key for key in CROWD if isinstance(heard[key].ends[0], Failed)]
    assert len(failed) == 1
    for key in CROWD:
        assert len(heard[key].ends) == 1
        if key not in failed:
            assert_sounds_as(heard[key], well[key])


def lying(subject: CosyVoiceEngine) -> dict[UtteranceKey, int]:
    """How much sound will become of the frames that lie before the vocoder or in it, by utterance."""
    stage = subject._audio
    renderer = subject.components.renderer
    there = [*stage._vocoder_queue, *([stage._vocoder[:2]] if stage._vocoder else [])]
    samples = dict.fromkeys(subject._utterances, 0)
    for sounds, mels in there:
        for sound, mel in zip(sounds, mels.frames, strict=True):
            samples[sound.utterance.output.key] += renderer.samples(mel)
    return samples


def test_what_lies_before_the_vocoder_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a batch is given to the vocoder one by one while the flow makes more: credit is a promise."""
    config = settings(render_batch=4, decode_batch=4)
    subject = engine("cosyvoice3", config, script=long_script, streams=beside(SlowStream([0])))
    vocode = subject.components.renderer.vocode
    failed = False

    def fails(works: Sequence[RenderRequest], mels: Sequence[Tensor]) -> VocoderOutput:
        nonlocal failed
        if len(works) > 1 and not failed and subject._audio._flow is not None:
            failed = True
            raise torch.OutOfMemoryError("out of memory")
        return vocode(works, mels)

    monkeypatch.setattr(subject.components.renderer, "vocode", fails)
    for key in CROWD:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, LONG[0]))
        subject.handle(EndText(key))
    most = 0
    while subject.has_work:
        subject.step(0.0)
        lies = lying(subject)
        assert {key: utterance.in_flight_samples for key, utterance in subject._utterances.items()} == lies
        most = max([most, *lies.values()])
    assert failed
    assert most


def test_a_chunk_that_waits_for_the_vocoder_is_heard_before_its_call_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocoder goes on one by one, and meanwhile the flow fails at the next chunk of somebody who is not alone."""
    lengths = {"s0": 5, "s1": 5, "s2": 150}
    config = settings(render_batch=4, decode_batch=4, smooth_start=False)
    subject = engine(
        "cosyvoice3",
        config,
        script=lambda key, run: [*range(lengths[key.session]), 6562],
        streams=beside(SlowStream([0, 90])),
    )
    renderer = subject.components.renderer
    met = False
    flow = renderer._run_flow
    vocode = renderer.vocode

    def makes(works: Sequence[RenderRequest]) -> FlowOutput:
        if len(works) == 1 and works[0].chunk.begin:
            raise ValueError("numbers")
        return flow(works)

    def says(works: Sequence[RenderRequest], mels: Sequence[Tensor]) -> VocoderOutput:
        nonlocal met
        if len(works) > 1:
            met = subject._audio._flow is not None and len(subject._audio._flow[0]) == 1
            raise ValueError("numbers")
        return vocode(works, mels)

    monkeypatch.setattr(renderer, "_run_flow", makes)
    monkeypatch.setattr(renderer, "vocode", says)
    for key in CROWD:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, LONG[0]))
        subject.handle(EndText(key))
    heard: dict[UtteranceKey, EngineOutput] = {key: EngineOutput() for key in CROWD}
    hear(subject, heard)
    assert met
    *others, unlucky = CROWD
    assert [heard[key].ends for key in others] == [[Done(key)] for key in others]
    assert isinstance(heard[unlucky].ends[0], Failed)
    assert heard[unlucky].samples


def test_a_thread_tells_what_it_raised_and_whoever_enters_waits_for_it() -> None:
    lane = ThreadStream()
    go = threading.Event()
    begun = lane.submit(lambda: (go.wait(), 1 // 0)[1])
    assert not begun.is_done
    entered = threading.Event()

    def enter() -> None:
        with lane:
            entered.set()

    other = threading.Thread(target=enter)
    other.start()
    assert not entered.is_set()
    go.set()
    other.join()
    assert begun.is_done
    with pytest.raises(ZeroDivisionError):
        begun.result()
    assert lane.submit(lambda: threading.current_thread().name).result() == "tts-flow"
    lane.close()
    lane.close()
    assert not lane._thread.is_alive()


def test_the_thread_ends_with_its_engine() -> None:
    subject = engine("cosyvoice3", settings(overlap=True))
    speak(subject, TEXT)
    lane = subject.components.streams.flow
    assert isinstance(lane, ThreadStream)
    thread = lane._thread
    gone = weakref.ref(subject.components.pool)
    del lane, subject  # as after a fault: nobody closed it
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert gone() is None


@pytest.mark.parametrize(("threads", "own", "flow"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (8, 2, 6)])
def test_the_flow_has_most_of_the_threads(threads: int, own: int, flow: int) -> None:
    torch.set_num_threads(threads)
    streams = streams_for(torch.device("cpu"), overlap=True)
    try:
        assert torch.get_num_threads() == own
        assert streams.flow.submit(torch.get_num_threads).result() == flow
    finally:
        streams.close()
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("threads", "overlap", "expected"), [(2, None, False), (3, None, True), (1, True, True), (4, False, False)]
)
def test_where_cores_are_to_spare_the_flow_has_its_own_thread(
    threads: int, overlap: bool | None, expected: bool
) -> None:
    subject = load_engine(LoadOptions(tiny("cosyvoice3"), device="cpu", threads=threads, overlap=overlap))
    assert isinstance(subject.components.streams.flow, ThreadStream) is expected
    subject.close()
    torch.set_num_threads(1)
