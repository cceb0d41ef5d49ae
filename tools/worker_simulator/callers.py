"""Callers: programs that open sessions through the registry, write text, and do everything that clients do."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tools.worker_simulator.engines import source_of
from tools.worker_simulator.network import owner
from tools.worker_simulator.properties import check_report
from tts_worker.errors import ErrorCode, TTSWorkerError
from tts_worker.types import Ended, Outcome, PcmFrame, SessionOptions, State, UtteranceKey, Words

if TYPE_CHECKING:
    from tools.worker_simulator.view import WorldView

WORDS = (
    *("one", "two", "hello", "good", "morning", "your", "table", "is", "ready", "at", "noon", "please", "hold", "the"),
    *("line", "while", "I", "look", "thank", "you", "for", "waiting", "interesting", "reservation", "tomorrow"),
)
_ENDS = (".", "!", "?", ",", ";", "")
_SILENT = ("", " ", "**", "\N{GRINNING FACE}", "...")

_REFUSALS = {
    ErrorCode.OVER_CAPACITY: "all slots are taken",
    ErrorCode.QUOTA_EXCEEDED: "a key has all of its sessions open",
}


def make_text(chance: random.Random) -> str:
    """Return a text of up to four phrases, at times without anything to speak."""
    if chance.random() < 0.05:
        return chance.choice(_SILENT)
    phrases = []
    for _ in range(chance.choice((1, 1, 2, 4))):
        words = " ".join(chance.choices(WORDS, k=chance.randint(1, 9)))
        phrases.append(words + chance.choice(_ENDS))
    return " ".join(phrases)


def cut(text: str, chance: random.Random) -> list[str]:
    """Return the text in deltas of random length."""
    if chance.random() < 0.3:
        return [text]
    deltas = []
    while text:
        size = chance.randint(1, 12)
        deltas.append(text[:size])
        text = text[size:]
    return deltas or [""]


@dataclass
class _Heard:
    """What a caller knows of an utterance."""

    text: str = ""
    samples: int = 0
    number: int | None = None
    is_stopped: bool = False
    ended: Ended | None = None
    words: list[tuple[int, int]] = field(default_factory=list)


class Listener:
    """Reads the outputs of a session and checks them.

    Args:
        world: The simulation.
        session: The session.
        chance: Draws what the reader does.
        is_native: Whether its audio is that of the engine.
    """

    def __init__(self, world: WorldView, session: Any, chance: random.Random, *, is_native: bool) -> None:
        self.session = session
        self.utterances: dict[UtteranceKey, _Heard] = {}
        self.read_delay_s = 0.0
        self.reports_playback = False
        self.has_left = False
        self.is_over = asyncio.Event()
        self._world = world
        self._chance = chance
        self._is_native = is_native
        self._changed = asyncio.Event()

    # -- commands -----------------------------------------------------------------------------------------------------

    def speak(self, delta: str | bytes, text: str) -> UtteranceKey:
        """Write a delta, of which ``text`` is what it decodes to."""
        key: UtteranceKey = self.session.speak(delta)
        self.utterances.setdefault(key, _Heard()).text += text
        return key

    def stop(self, played: int | None = None) -> None:
        was_paused = self.session.state is State.PAUSED
        live = [heard for heard in self.utterances.values() if heard.ended is None and not heard.is_stopped]
        self.session.stop("barge_in", played)
        for heard in live:
            heard.is_stopped = True
        if live:
            self._world.reach("a STOP before the first audio", not live[0].samples)
            self._world.reach("a STOP while paused", was_paused)
            self._world.reach("a STOP ends a queued utterance", len(live) > 1)

    async def wait_ended(self, key: UtteranceKey) -> None:
        """Wait until an utterance has ended, or nothing more is read."""
        while self.utterances[key].ended is None and not self.is_over.is_set():
            self._changed.clear()
            await self._changed.wait()

    # -- outputs ------------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read until the session is closed."""
        while not self.has_left and (item := await self.session.next()) is not None:
            self._world.note(f"{item.key} {type(item).__name__} {getattr(item, 'start_sample', '')}")
            match item:
                case PcmFrame():
                    self._on_frame(item)
                    if self.read_delay_s:
                        await self._world.sleep(self.read_delay_s)
                case Words():
                    heard = self.utterances[item.key]
                    heard.words += [(word.start_sample, word.end_sample) for word in item.words]
                case Ended():
                    self._on_ended(item)
        if not self.has_left:
            self._check_all_ended()
        self.is_over.set()
        self._changed.set()

    def _on_frame(self, frame: PcmFrame) -> None:
        world = self._world
        heard = self.utterances[frame.key]
        if heard.is_stopped or heard.ended is not None:
            world.violate("no audio of a stopped utterance follows", f"{frame.key} (client)")
        if self.session.state is State.PAUSED:
            world.violate("no audio while paused", f"{frame.key}")
        if frame.start_sample != heard.samples:
            world.violate("audio is that of its utterance, without gaps", f"{frame.key} at {frame.start_sample}")
        if self._is_native:
            number = source_of(frame.pcm, frame.start_sample)
            if heard.number is None:
                heard.number = number
                if number in world.heard_numbers:
                    world.violate("audio is that of its utterance, without gaps", f"{frame.key} was heard before")
                world.heard_numbers.add(number)
            elif number != heard.number:
                world.violate("audio is that of its utterance, without gaps", f"{frame.key} has other audio")
        heard.samples += frame.samples
        if self.reports_playback:
            self._report(frame.key, heard)

    def _report(self, key: UtteranceKey, heard: _Heard) -> None:
        """Report a position: late, wrong, or that of another utterance."""
        chance = self._chance
        kind = chance.randrange(5)
        if kind == 0:
            self.session.played(heard.samples + chance.randint(1, 100_000), key)
            self._world.reach("a client reports more than it got")
        elif kind == 1:
            self.session.played(chance.randint(-100, heard.samples), UtteranceKey(key.session, key.generation + 1))
        elif kind < 4:
            self.session.played(max(0, heard.samples - chance.randint(0, 20_000)), key)

    def _on_ended(self, event: Ended) -> None:
        world = self._world
        heard = self.utterances[event.key]
        receipt = event.receipt
        if heard.ended is not None:
            world.violate("an utterance has one terminal event", f"{event.key} ended again (client)")
        heard.ended = event
        if receipt.text_spoken + receipt.text_remaining != heard.text:
            world.violate("text_spoken + text_remaining is the text", f"{event.key} (client): {event.outcome.value}")
        if receipt.samples_sent > heard.samples:
            world.violate(
                "a report claims no more than was sent", f"{event.key}: {receipt.samples_sent} of {heard.samples}"
            )
        check_report(world, receipt, event.outcome, f"{event.key} (client)")
        self._note_end(event)
        self._changed.set()

    def _note_end(self, event: Ended) -> None:
        world, receipt = self._world, event.receipt
        world.reach("an utterance without speech", receipt.reason == "nothing_to_speak")
        world.reach("a pause times out", receipt.reason == "pause_timeout")
        world.reach("a drain ends an utterance", receipt.reason == "drain")
        words = self.utterances[event.key].words
        is_cut = any(start < receipt.samples_sent < end for start, end in words)
        world.reach("a barge-in cuts a word", event.outcome is Outcome.STOPPED and is_cut)
        if event.error is not None:
            world.reach("a connection breaks within an utterance", event.error.code is ErrorCode.CONNECTION_LOST)
            if event.error.code is ErrorCode.QUOTA_EXCEEDED:
                world.reach("a key has spoken all of its characters")
            if event.error.code is ErrorCode.DEADLINE_EXCEEDED:
                world.on_deadline(str(event.key))

    def _check_all_ended(self) -> None:
        for key, heard in self.utterances.items():
            if heard.ended is None:
                self._world.violate("every utterance ends", f"{key} (client)")


class SimulatedCaller:
    """A program that speaks a few times, in one way or another.

    Args:
        world: The simulation.
        number: Its number.
    """

    def __init__(self, world: WorldView, number: int) -> None:
        self.name = f"caller-{number}"
        self.activity = "not begun"
        self._world = world
        self._chance = world.chance_of(self.name)

    async def run(self) -> None:
        """Open sessions until the world is calm."""
        owner.set(self)
        chance = self._chance
        await self._world.sleep(chance.uniform(0, 6))
        for _ in range(chance.choice((1, 2, 3))):
            if self._world.is_calm:
                break
            self.activity = "opens a session"
            await self._run_session()
            await self._world.sleep(chance.expovariate(1.5))
        self.activity = "over"

    def _options(self) -> SessionOptions:
        chance = self._chance
        is_download = chance.random() < self._world.download_share
        options: dict[str, Any] = {"voice": chance.choice(self._world.voices), "realtime": not is_download}
        if chance.random() < 0.15:
            options["sample_rate"] = chance.choice((8_000, 11_025, 48_000))
        if chance.random() < 0.2:
            options["speed"] = chance.choice((0.5, 1.5, 2.0))
        if is_download and chance.random() < 0.3:
            options["raw_chunks"] = True
        return SessionOptions(**options)

    async def _run_session(self) -> None:
        world, chance = self._world, self._chance
        options = self._options()
        connector = chance.choice(world.connectors)
        try:
            opened = await connector.open(options, audio_timeout_s=10.0)
        except TTSWorkerError as error:
            self._note_refusal(error, options)
            await world.sleep(chance.uniform(0.1, 1.0))
            return
        listener = Listener(world, opened.session, chance, is_native=options.sample_rate is None)
        reading = world.spawn(listener.read(), f"{self.name}-reader")
        try:
            for _ in range(chance.choice((1, 1, 2, 3))):
                if opened.session.state is State.CLOSED or world.is_calm:
                    break
                await chance.choice(self.PLANS)(self, listener)
                if listener.has_left:
                    return
                await world.sleep(chance.choice((0.0, 0.0, 0.3, 3.0)))
        except TTSWorkerError as error:
            world.note(f"{self.name} {error.code.value}")
        finally:
            if not listener.has_left:
                self.activity = "closes"
                opened.session.close()
        await listener.is_over.wait()
        await reading

    def _note_refusal(self, error: TTSWorkerError, options: SessionOptions) -> None:
        world = self._world
        world.note(f"{self.name} refused: {error.code.value}")
        if error.code is ErrorCode.OVER_CAPACITY and not options.realtime:
            world.reach("all slots for downloads are taken", "downloads" in error.message)
        if (state := _REFUSALS.get(error.code)) is not None:
            world.reach(state)

    # -- plans --------------------------------------------------------------------------------------------------------

    async def _write(self, listener: Listener, *, pause_s: float = 0.0, ends: bool = True) -> UtteranceKey:
        """Write a text, as a language model does."""
        chance = self._chance
        text = make_text(chance)
        key: UtteranceKey | None = None
        deltas = cut(text, chance)
        for delta in deltas:
            key = listener.speak(delta if chance.random() < 0.9 else delta.encode(), delta)
            if pause_s:
                await self._world.sleep(chance.expovariate(1 / pause_s))
        assert key is not None
        session = listener.session
        if chance.random() < 0.1:
            session.flush()
        if ends and session.writing == key:
            session.end_text()
        return key

    async def _speak(self, listener: Listener) -> None:
        self.activity = "speaks"
        await listener.wait_ended(await self._write(listener))

    async def _write_slowly(self, listener: Listener) -> None:
        self.activity = "writes slowly"
        await listener.wait_ended(await self._write(listener, pause_s=self._chance.choice((0.03, 0.2))))

    async def _queue(self, listener: Listener) -> None:
        """Write several utterances at once; stop them at times."""
        self.activity = "queues utterances"
        key = await self._write(listener)
        for _ in range(self._chance.randint(1, 3)):
            key = await self._write(listener)
        if self._chance.random() < 0.4:
            await self._world.sleep(self._chance.uniform(0, 2))
            listener.stop()
        await listener.wait_ended(key)

    async def _barge_in(self, listener: Listener) -> None:
        self.activity = "barges in"
        chance = self._chance
        key = await self._write(listener, ends=chance.random() < 0.7)
        await self._world.sleep(chance.choice((0.0, 0.05, 0.3, 1.0, 2.0)) * chance.random() * 2)
        heard = listener.utterances[key].samples
        listener.stop(chance.choice((None, None, heard // 2, heard + 5_000)))
        if chance.random() < 0.6:
            key = await self._write(listener)  # at once, as an agent that was interrupted does
        if chance.random() < 0.2:
            listener.stop()
        await listener.wait_ended(key)

    async def _pause(self, listener: Listener) -> None:
        self.activity = "pauses"
        world, chance, session = self._world, self._chance, listener.session
        key = await self._write(listener, ends=chance.random() < 0.8)
        for _ in range(chance.randint(1, 3)):
            await world.sleep(chance.uniform(0, 0.8))
            session.pause()
            reloads = world.reloads
            await world.sleep(chance.choice((0.0, 0.1, 2.0, 3.0, 3.5)))
            if chance.random() < 0.15:
                listener.stop()
            was_paused = session.state is State.PAUSED
            session.resume()
            world.reach("a pause spans a reload", was_paused and world.reloads > reloads)
        if session.writing == key:
            session.end_text()
        await listener.wait_ended(key)

    async def _wait_out_a_pause(self, listener: Listener) -> None:
        self.activity = "pauses for good"
        key = await self._write(listener)
        await self._world.sleep(self._chance.uniform(0.1, 0.6))
        listener.session.pause()
        await asyncio.sleep(8.0)  # longer than the worker allows
        listener.session.resume()  # the worker may have been through, and the rest of the audio be held here
        await listener.wait_ended(key)

    async def _read_slowly(self, listener: Listener) -> None:
        self.activity = "reads slowly"
        chance = self._chance
        listener.read_delay_s = chance.choice((0.08, 0.3, 1.5))
        key = await self._write(listener)
        await self._world.sleep(chance.uniform(1, 8))
        listener.read_delay_s = 0.0
        await listener.wait_ended(key)

    async def _report_playback(self, listener: Listener) -> None:
        self.activity = "reports playback"
        listener.reports_playback = True
        key = await self._write(listener)
        if self._chance.random() < 0.5:
            await self._world.sleep(self._chance.uniform(0.2, 1.5))
            listener.stop()
        await listener.wait_ended(key)
        listener.reports_playback = False

    async def _stop_reading(self, listener: Listener) -> None:
        """Read nothing for so long that the worker gives up."""
        self.activity = "reads nothing"
        listener.read_delay_s = 30.0
        for _ in range(5):
            key = await self._write(listener)
        await self._world.sleep(15.0)
        listener.read_delay_s = 0.0
        await listener.wait_ended(key)

    async def _vanish(self, listener: Listener) -> None:
        """Be gone without a word: the process is killed, or its network is."""
        self.activity = "vanishes"
        chance = self._chance
        await self._write(listener, ends=chance.random() < 0.5)
        await self._world.sleep(chance.uniform(0, 1.5))
        listener.has_left = True
        is_half_open = chance.random() < 0.5
        for call in self._world.network.calls_of(self):
            if is_half_open:
                call.become_half_open()
        self._world.reach("a client vanishes")
        listener.session.close()

    async def _close(self, listener: Listener) -> None:
        self.activity = "closes in the middle"
        await self._write(listener, ends=self._chance.random() < 0.5)
        await self._world.sleep(self._chance.uniform(0, 1.5))
        listener.session.close()

    async def _idle(self, listener: Listener) -> None:
        """Keep the session open without speaking, then speak."""
        self.activity = "is idle"
        await self._world.sleep(self._chance.uniform(1, 8))
        self.activity = "speaks after a while"
        await listener.wait_ended(await self._write(listener))

    PLANS = (
        *(_speak, _speak, _write_slowly, _queue, _barge_in, _barge_in, _pause, _pause, _wait_out_a_pause),
        *(_read_slowly, _report_playback, _stop_reading, _vanish, _close, _idle, _idle),
    )
