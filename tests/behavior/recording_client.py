"""A client of one session that records every event and checks the invariants of the event order."""

from __future__ import annotations

from collections import defaultdict

from tts_worker.protocol.session import Session
from tts_worker.types import Acknowledged, ControlName, Ended, Output, PcmFrame, Started, UtteranceKey, Word, Words


class RecordingClient:
    """Records a session. It reads only when asked to, so a test decides how far playback gets.

    Args:
        session: The session to read from.
        is_lossless: The transport carries every sample unchanged, so positions can be compared exactly.
    """

    def __init__(self, session: Session, *, is_lossless: bool = True) -> None:
        self.session = session
        self.is_lossless = is_lossless
        self.log: list[Output] = []
        self.ends: dict[UtteranceKey, Ended] = {}
        self.pcm: dict[UtteranceKey, bytes] = defaultdict(bytes)
        self.words: dict[UtteranceKey, list[Word]] = defaultdict(list)

    def record(self, item: Output) -> None:
        """Log one event and check the invariants."""
        self.log.append(item)
        match item:
            case PcmFrame():
                assert item.key not in self.ends, "audio after the terminal event"
                assert item.start_sample == len(self.pcm[item.key]) // 2, "missing or repeated samples"
                self.pcm[item.key] += item.pcm
            case Words():
                self._record_words(item)
            case Ended():
                assert item.key not in self.ends, "a second terminal event"
                self.ends[item.key] = item
                received_samples = len(self.pcm[item.key]) // 2
                assert not self.is_lossless or item.receipt.samples_sent == received_samples, "the report is wrong"
                assert (item.error is not None) == (item.outcome.value == "error")

    def _record_words(self, item: Words) -> None:
        # A transport that re-frames audio sends words together with a larger frame.
        tolerance_samples = 0 if self.is_lossless else 6_000
        for word in item.words:
            received_samples = len(self.pcm[item.key]) // 2
            assert word.start_sample >= received_samples - tolerance_samples, "a word arrived after its audio"
            assert not self.words[item.key] or word.start_char >= self.words[item.key][-1].end_char
            self.words[item.key].append(word)

    async def next(self) -> Output | None:
        item = await self.session.next()
        if item is not None:
            self.record(item)
        return item

    async def wait_started(self) -> Started:
        while True:
            item = await self.next()
            assert item is not None, "the session closed"
            if isinstance(item, Started):
                return item

    async def wait_acknowledged(self, command: ControlName) -> Acknowledged:
        while True:
            item = await self.next()
            assert item is not None, "the session closed"
            if isinstance(item, Acknowledged):
                assert item.command is command
                return item

    async def receive_samples(self, samples: int, key: UtteranceKey | None = None) -> UtteranceKey:
        """Read until at least ``samples`` of one utterance have arrived; return its key."""
        while True:
            item = await self.next()
            assert item is not None, "the session closed"
            if isinstance(item, PcmFrame) and key in (None, item.key) and len(self.pcm[item.key]) // 2 >= samples:
                return item.key

    async def wait_ended(self, key: UtteranceKey) -> Ended:
        """Read until the utterance has ended."""
        while key not in self.ends:
            item = await self.next()
            assert item is not None, "the session closed before the utterance ended"
        return self.ends[key]

    async def drain(self) -> None:
        """Read the remaining events of a closed session."""
        while await self.next() is not None:
            pass

    async def synthesize(self, text: str | bytes) -> Ended:
        """Send one utterance and read it to its end."""
        key = self.session.speak(text)
        self.session.end_text()
        return await self.wait_ended(key)
