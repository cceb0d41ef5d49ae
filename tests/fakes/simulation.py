"""Session machines, pacers and an engine under a simulated clock, without threads, sleeping or asyncio.

Listeners play audio in simulated real time, also while an engine step runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from tests.fakes.text import WordText
from tts_worker.engine.scheduler import Policy
from tts_worker.engine.tone import ToneEngine, ToneSettings
from tts_worker.session.machine import MachineConfig, SessionMachine
from tts_worker.session.pacer import Pacer
from tts_worker.types import SAMPLE_RATE_HZ, Ended, Outcome, PcmFrame, SynthesisParams

TICK_S = 0.005


@dataclass
class Listener:
    machine: SessionMachine
    pacer: Pacer
    starts_at_s: float
    text: str
    first_audio_s: float | None = None
    samples: int = 0
    outcome: Outcome | None = None
    longest_lead_s: float = 0.0
    next_at_s: float = 0.0  # nothing happens before, unless the engine sends something


@dataclass
class Simulation:
    """A simulation of several streams.

    Attributes:
        streams: Start time in seconds and text of each stream.
        cost_per_audio_s: Engine time per second of audio.
        policy: Plans the steps; None selects the default scheduler.
    """

    streams: Sequence[tuple[float, str]]
    cost_per_audio_s: float
    policy: Policy | None
    ms_per_char: int = 60
    whole_segments: bool = True
    listeners: list[Listener] = field(init=False)
    now_s: float = 0.0
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        self.spent_s = 0.0
        self.engine = ToneEngine(
            ToneSettings(
                ms_per_char=self.ms_per_char,
                whole_segments=self.whole_segments,
                cost_per_audio_s=self.cost_per_audio_s,
                spend=self._spend,
                policy=self.policy,
            )
        )
        config = MachineConfig()
        self.listeners = [
            Listener(
                SessionMachine(f"s{i:02}", SynthesisParams("tone"), lambda params: WordText(), config),
                Pacer(SAMPLE_RATE_HZ, lead_s=0.06),
                start_s,
                text,
            )
            for i, (start_s, text) in enumerate(self.streams)
        ]

    def _spend(self, seconds: float) -> None:
        self.spent_s += seconds

    def run(self, until_s: float) -> Simulation:
        while self.now_s < until_s and not all(p.outcome for p in self.listeners):
            self._listen()
            if not self.engine.has_work:
                self.now_s += TICK_S
                continue
            self.spent_s = 0.0
            events = self.engine.step(self.now_s)
            self.busy_s += self.spent_s
            ends_s = self.now_s + self.spent_s
            while self.now_s + TICK_S < ends_s:
                self.now_s += TICK_S
                self._listen()
            self.now_s = max(ends_s, self.now_s)
            for event in events:
                listener = next(p for p in self.listeners if p.machine.session == event.key.session)
                listener.machine.on_engine(event)
                listener.next_at_s = self.now_s
        return self

    def _due(self, listener: Listener) -> bool:
        return listener.pacer.due_at_s(listener.machine.next_frame_samples, self.now_s) <= self.now_s

    def _listen(self) -> None:
        for listener in self.listeners:
            if listener.next_at_s > self.now_s:
                continue
            machine = listener.machine
            if listener.starts_at_s <= self.now_s and listener.text:
                machine.speak(listener.text)
                machine.end_text()
                while machine.has_unread_text:
                    machine.read_more()
                listener.text = ""
            while (item := machine.poll(audio=self._due(listener))) is not None:
                if isinstance(item, PcmFrame):
                    listener.pacer.record_sent(item.samples, self.now_s)
                    listener.samples += item.samples
                    if listener.first_audio_s is None:
                        listener.first_audio_s = self.now_s - listener.starts_at_s
                elif isinstance(item, Ended):
                    listener.outcome = item.outcome
            lead_s = machine.buffered_samples / SAMPLE_RATE_HZ + listener.pacer.lead_at_s(self.now_s)
            listener.longest_lead_s = max(listener.longest_lead_s, lead_s)
            for command in machine.take_commands():
                self.engine.handle(command)
            if listener.text:
                listener.next_at_s = listener.starts_at_s
            elif samples := machine.next_frame_samples:
                listener.next_at_s = listener.pacer.due_at_s(samples, self.now_s)
            else:
                listener.next_at_s = inf
