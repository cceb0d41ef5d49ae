"""Long or costly text is read in portions that yield to the event loop, and thus to the frames of running calls."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.session.test_flush_after import OBSERVER, RecordingEngine
from tests.unit.session.test_read_scheduler import VirtualClock
from tts_worker.session.machine import MachineConfig, SessionMachine
from tts_worker.session.reading import MAX_READ_S, ReadScheduler
from tts_worker.session.session import LocalSession
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import EndText, Segment, SynthesisParams, Text

PORTION_CHARS = 16
CHAR_S = 1e-5


class CostlyText(TextPipeline):
    """Takes virtual time for every character."""

    def __init__(self, clock: VirtualClock, char_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._char_s = char_s

    def feed(self, delta: str | bytes) -> list[Segment]:
        self._clock.now_s += len(delta) * self._char_s
        return super().feed(delta)


class Speakers:
    """Sessions that share a clock and a read scheduler."""

    def __init__(self, char_s: float) -> None:
        self.clock = VirtualClock()
        self.machines: list[SessionMachine] = []
        self.engine = RecordingEngine()
        self._char_s = char_s
        self._read_scheduler = ReadScheduler(asyncio.get_running_loop(), self.clock)

    def open(self, *, paced: bool) -> LocalSession:
        machine = SessionMachine(
            f"s{len(self.machines)}",
            SynthesisParams("v"),
            lambda params: CostlyText(self.clock, self._char_s),
            MachineConfig(read_chars=PORTION_CHARS, paced=paced),
        )
        self.machines.append(machine)
        return LocalSession(
            machine,
            self.engine,
            lead_s=0.04,
            observe=lambda engine, voice: OBSERVER,
            read_scheduler=self._read_scheduler,
        )

    async def read_all(self) -> list[float]:
        """Read all text; return the virtual time that each iteration of the event loop took."""
        times_s = []
        began_s = 0.0  # the iteration in which the texts arrive counts
        while any(machine.has_unread_text for machine in self.machines):
            await asyncio.sleep(0)
            times_s.append(self.clock.now_s - began_s)
            began_s = self.clock.now_s
        return times_s


@pytest.mark.parametrize(("calls", "downloads"), [(0, 6), (100, 0), (40, 40)])
async def test_texts_that_begin_together_delay_frames_briefly(calls: int, downloads: int) -> None:
    speakers = Speakers(CHAR_S)
    for paced, chars in [(False, 2_000)] * downloads + [(True, 200)] * calls:
        session = speakers.open(paced=paced)
        session.speak("Some words. " * (chars // 12))
        session.end_text()
    times_s = await speakers.read_all()
    # New text and waiting text may take MAX_READ_S each and exceed it by a portion.
    assert max(times_s) <= 2 * (MAX_READ_S + PORTION_CHARS * CHAR_S)
    assert sum(isinstance(command, EndText) for command in speakers.engine.commands) == calls + downloads


async def test_reading_yields_after_each_costly_portion() -> None:
    speakers = Speakers(char_s=MAX_READ_S)  # every portion exceeds the limit
    session = speakers.open(paced=True)
    session.speak("Some words. " * 20)
    session.end_text()
    assert len(await speakers.read_all()) >= 14  # 15 portions, the first of them before the loop continued
    assert isinstance(speakers.engine.commands[-1], EndText)


async def test_texts_that_begin_together_keep_their_order() -> None:
    speakers = Speakers(CHAR_S)
    for number in range(50):
        sentences = 1 if number % 3 else 30
        session = speakers.open(paced=True)
        session.speak("The morning train was late again so we walked along the river and talked. " * sentences)
        session.end_text()
    await speakers.read_all()
    texts = [command for command in speakers.engine.commands if isinstance(command, Text)]
    first = [command.key.session for command in texts if command.segment.index == 0]
    assert first == [machine.session for machine in speakers.machines]


async def test_long_texts_begin_before_any_ends() -> None:
    speakers = Speakers(CHAR_S)
    for _ in range(20):
        session = speakers.open(paced=True)
        session.speak("Some words. " * 200)
        session.end_text()
    await speakers.read_all()
    commands = speakers.engine.commands
    begins = [place for place, item in enumerate(commands) if isinstance(item, Text) and item.segment.index == 0]
    ends = [place for place, item in enumerate(commands) if isinstance(item, EndText)]
    assert len(begins) == len(ends) == 20
    assert max(begins) < min(ends)
