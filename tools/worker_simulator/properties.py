"""What always holds, what must happen at times, and the checks of what a worker sends on one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from tools.worker_simulator.engines import source_of
from tools.worker_simulator.network import SimulatedCall
from tts_worker.protocol.messages import ReportMessage
from tts_worker.protocol.proto_codec import parse_worker_message
from tts_worker.types import BYTES_PER_SAMPLE, Outcome, Receipt

if TYPE_CHECKING:
    from tools.worker_simulator.view import WorldView

ALWAYS = (
    "an utterance has one terminal event",
    "every utterance ends",
    "no audio of a stopped utterance follows",
    "a STOP is answered within 50 ms",
    "no audio while paused",
    "audio is that of its utterance, without gaps",
    "audio is generated without gaps",
    "text_spoken + text_remaining is the text",
    "a report claims no more than was sent",
    "a report claims no more than was played",
    "credit is never negative",
    "no credit is lost",
    "an utterance that can go on goes on",
    "a call is not starved",
    "slots are given back",
    "no more sessions speak than there are slots",
    "sequences are freed",
    "pages are returned",
    "an engine takes no more pages than it has",
    "a batch item ends once",
    "a batch is finished",
    "a key has no more sessions than it may",
    "a key speaks no more characters than it may",
    "quotas are shared while Redis answers",
    "a call goes to a registered worker",
    "a connection to a worker that is gone is closed",
    "no internal error",
)
"""Properties that hold at every moment of every run."""

SOMETIMES = (
    "a barge-in cuts a word",
    "a STOP before the first audio",
    "a STOP while paused",
    "a STOP ends a queued utterance",
    "a pause spans a reload",
    "a pause times out",
    "an engine dies with calls",
    "an engine hangs with calls",
    "a device is lost",
    "a model is reloaded with its memory freed first",
    "a model is evicted",
    "a session loads a model",
    "a drain begins with a batch",
    "a drain ends an utterance",
    "a killed worker had a batch",
    "a batch goes on in another process",
    "a batch is submitted twice",
    "a disk is full",
    "a key has all of its sessions open",
    "a key has spoken all of its characters",
    "all slots are taken",
    "all slots for downloads are taken",
    "an idle session is evicted",
    "an idle session loses its slot and speaks again",
    "an underrun caused by the client",
    "a client reads nothing for too long",
    "a client reports more than it got",
    "a client vanishes",
    "a connection breaks within an utterance",
    "a connection is half-open",
    "an utterance moves to another worker",
    "Redis does not answer",
    "Redis loses its data",
    "Redis refuses to write",
    "Redis fails over",
    "an utterance waits for pages",
    "the members of a failed batch run alone",
    "an utterance without speech",
    "a download beside calls",
)
"""States that the fixed seeds together must reach: a property that is never tried says nothing."""


@dataclass(frozen=True)
class Violation:
    """A property that did not hold.

    Attributes:
        name: One of ``ALWAYS``.
        details: What was seen.
        at_s: Virtual time.
    """

    name: str
    details: str
    at_s: float

    def __str__(self) -> str:
        return f"{self.name}: {self.details} (at {self.at_s:.3f} s)"


def check_report(world: WorldView, receipt: Receipt, outcome: Outcome, where: str) -> None:
    """Check that a report does not contradict itself."""
    played = receipt.samples_played
    if receipt.samples_sent > receipt.samples_generated:
        world.violate("a report claims no more than was sent", f"{where}: {receipt.samples_sent} sent of fewer")
    if played is not None and played > receipt.samples_sent:
        world.violate("a report claims no more than was played", f"{where}: {played} of {receipt.samples_sent}")
    position = receipt.samples_sent if played is None else played
    if outcome is not Outcome.DONE and position < receipt.samples_generated:
        for word in receipt.words:
            if word.start_sample + word.end_sample > 2 * position:
                world.violate("a report claims no more than was played", f"{where}: a word after sample {position}")
                return


_STOP_S = 0.05


@dataclass
class _Wire:
    """What was sent of one utterance on a call."""

    number: int
    samples: int = 0
    is_stopped: bool = False
    is_reported: bool = False
    answer_due_s: float = inf


@dataclass
class CallCheck:
    """Checks the messages of one call in the order in which the worker sends them.

    Args:
        world: The simulation.
        call: The call.

    Attributes:
        session: The session of the worker, once it is admitted.
        is_native: Its audio is that of the engine, so that each sample tells where it comes from.
    """

    world: WorldView
    call: SimulatedCall
    session: str = ""
    is_native: bool = False
    _current: _Wire | None = None
    _by_context: dict[str, _Wire] = field(default_factory=dict)
    _text: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.call.context.on_write = self.on_write
        self.call.context.on_request = self.on_request

    def on_request(self, message: Any) -> None:
        """The worker has handled a message of the client."""
        match message.WhichOneof("message"):
            case "say":
                self._text[message.say.context] = self._text.get(message.say.context, "") + message.say.text
            case "stop":
                is_behind = self.call.to_client.blocked_since_s is not None
                due_s = inf if is_behind else self.world.now_s + _STOP_S
                for wire in self._by_context.values():
                    wire.is_stopped = True
                    wire.answer_due_s = min(wire.answer_due_s, due_s)

    def on_write(self, message: Any) -> None:
        """The worker sends a message."""
        kind = message.WhichOneof("message")
        if kind == "pcm":
            self._on_audio(message.pcm)
        elif kind == "ready":
            self.session = message.ready.session
            is_pcm = message.ready.format in ("", "pcm_s16le")
            self.is_native = is_pcm and message.ready.sample_rate == 24_000
        elif kind == "started":
            started = message.started
            self._current = self._by_context[started.context] = _Wire(started.utterance)
        elif kind == "ended":
            report = parse_worker_message(message)
            assert isinstance(report, ReportMessage)
            self._on_report(report)

    def _on_audio(self, pcm: bytes) -> None:
        wire = self._current
        if wire is None or wire.is_reported or wire.is_stopped:
            self.world.violate("no audio of a stopped utterance follows", f"{self.session}")
            return
        if self.is_native:
            number = source_of(pcm, wire.samples)
            key = self.world.key_of(number)
            if key is None or (key.session, key.generation) != (self.session, wire.number):
                self.world.violate(
                    "audio is that of its utterance, without gaps", f"{self.session}/{wire.number} has audio of {key}"
                )
        wire.samples += len(pcm) // BYTES_PER_SAMPLE

    def _on_report(self, report: ReportMessage) -> None:
        context = report.context or ""
        wire = self._by_context.setdefault(context, _Wire(0))
        where = f"{self.session}/{wire.number}"
        if wire.is_reported:
            self.world.violate("an utterance has one terminal event", f"{where} is reported again")
        wire.is_reported = True
        if self.world.now_s > wire.answer_due_s:
            self.world.violate("a STOP is answered within 50 ms", where)
        receipt = report.receipt
        source = receipt.text_spoken + receipt.text_remaining
        if not self._text.get(context, "").startswith(source):
            self.world.violate("text_spoken + text_remaining is the text", f"{where} (of the worker)")
        if self.is_native and receipt.samples_sent != wire.samples:
            self.world.violate(
                "a report claims no more than was sent", f"{where}: {receipt.samples_sent} instead of {wire.samples}"
            )
        check_report(self.world, receipt, report.outcome, where)
