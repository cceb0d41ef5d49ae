"""Who listens to a session in the behaviours: keeps what came, and checks while listening what must always hold."""

from __future__ import annotations

from collections import defaultdict

from tts_worker.session.session import Session
from tts_worker.types import Acknowledged, ControlName, Ended, Output, PcmFrame, Started, UtteranceKey, Word, Words


class Ear:
    """Takes from ``session`` only when asked to, so a test decides how far it listens. ``exact``: the way there carries
    every sample as it is, so positions can be held against each other."""

    def __init__(self, session: Session, *, exact: bool = True) -> None:
        self.session = session
        self.exact = exact
        self.log: list[Output] = []
        self.ends: dict[UtteranceKey, Ended] = {}
        self.sound: dict[UtteranceKey, bytes] = defaultdict(bytes)
        self.words: dict[UtteranceKey, list[Word]] = defaultdict(list)

    def _take(self, item: Output) -> None:
        self.log.append(item)
        if isinstance(item, PcmFrame):
            assert item.key not in self.ends, "sound after the end"
            assert item.start_sample == len(self.sound[item.key]) // 2, "a hole, or sound twice"
            self.sound[item.key] += item.pcm
        elif isinstance(item, Words):
            for word in item.words:
                heard = len(self.sound[item.key]) // 2
                slack = 0 if self.exact else 6_000  # whoever re-frames sound lets words travel with a larger frame
                assert word.start_sample >= heard - slack, "a word time came later than its sound"
                assert not self.words[item.key] or word.start_char >= self.words[item.key][-1].end_char
                self.words[item.key].append(word)
        elif isinstance(item, Ended):
            assert item.key not in self.ends, "a second terminal event"
            self.ends[item.key] = item
            receipt = item.receipt
            heard = len(self.sound[item.key]) // 2
            assert not self.exact or receipt.samples_sent == heard, "the receipt counts what was handed out"
            assert (item.error is not None) == (item.outcome.value == "error")

    async def next(self) -> Output | None:
        item = await self.session.next()
        if item is not None:
            self._take(item)
        return item

    async def started(self) -> Started:
        while True:
            item = await self.next()
            assert item is not None, "the session closed"
            if isinstance(item, Started):
                return item

    async def acknowledged(self, command: ControlName) -> Acknowledged:
        while True:
            item = await self.next()
            assert item is not None, "the session closed"
            if isinstance(item, Acknowledged):
                assert item.command is command
                return item

    async def hear(self, samples: int, key: UtteranceKey | None = None) -> UtteranceKey:
        """Listen until ``samples`` of an utterance were heard."""
        while True:
            item = await self.next()
            assert item is not None, "the session closed"
            if isinstance(item, PcmFrame) and key in (None, item.key) and len(self.sound[item.key]) // 2 >= samples:
                return item.key

    async def end(self, key: UtteranceKey) -> Ended:
        """Listen until that utterance has ended."""
        while key not in self.ends:
            item = await self.next()
            assert item is not None, "the session closed before the utterance ended"
        return self.ends[key]

    async def silence(self) -> None:
        """Whatever is still to come after the session was closed."""
        while await self.next() is not None:
            pass

    async def say(self, text: str | bytes) -> Ended:
        key = self.session.speak(text)
        self.session.end_text()
        return await self.end(key)
