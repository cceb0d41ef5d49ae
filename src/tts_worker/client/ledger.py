"""One utterance as the client of a remote worker sees it: what was written, what came, what was taken, its receipt.

Pure book-keeping, the far end of ``session.utterance``. It knows neither the network nor who listens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tts_worker.errors import ErrorInfo
from tts_worker.text.decoding import TextDecoder
from tts_worker.text.spoken_words import split_spoken
from tts_worker.types import (
    Alignment,
    ChunkMeta,
    Ended,
    Outcome,
    PcmFrame,
    Receipt,
    UtteranceKey,
    Word,
    WordTiming,
)


@dataclass(slots=True, eq=False)
class Ledger:
    """``context``: its name on the wire. ``stopping``: the reason of a STOP that the worker has not confirmed yet.
    ``ended``: the worker has said its last word on it; ``told``: so has the session to its user. ``failure``: found on
    this side, told after the sound. ``taken_samples``: handed out to whoever listens; ``played_samples``: the caller's
    word on what was heard."""

    key: UtteranceKey
    context: str
    decoder: TextDecoder = field(default_factory=TextDecoder)
    written: list[str] = field(default_factory=list)
    text_ended: bool = False
    stopping: str | None = None
    ended: bool = False
    told: bool = False
    failure: ErrorInfo | None = None
    received_samples: int = 0
    taken_samples: int = 0
    played_samples: int | None = None
    frames: int = 0
    words: list[Word] = field(default_factory=list)

    def write(self, text: str | bytes) -> str:
        """Take text; returns the characters that are complete."""
        complete = self.decoder.feed(text)
        self.written.append(complete)
        return complete

    def end_text(self) -> str:
        """No more text comes; returns what became of half a character."""
        self.text_ended = True
        rest = self.decoder.end()
        self.written.append(rest)
        return rest

    def frame(self, pcm: bytes) -> PcmFrame:
        """The next frame of sound. Where it lies in the text is the word that begins last before its end."""
        samples = len(pcm) // 2
        start = self.received_samples
        end = self.received_samples + samples
        spoken = next((word for word in reversed(self.words) if word.start_sample < end), None)
        text_start, text_end = (spoken.start_char, spoken.end_char) if spoken is not None else (0, 0)
        frame = PcmFrame(self.key, self.frames, start, pcm, ChunkMeta(self.frames, text_start, text_end, start, 0.0))
        self.received_samples = end
        self.frames += 1
        return frame

    def heard(self, samples: int) -> None:
        """The caller's word on what was heard: never shrinks, never exceeds what was handed out."""
        self.played_samples = max(self.played_samples or 0, min(max(samples, 0), self.taken_samples))

    # -- the receipt --------------------------------------------------------------------------------------------------

    def receipt(self, reason: str) -> Receipt:
        """The receipt from what is known on this side: for a worker that cannot give one any more."""
        self.end_text()
        whole = Receipt(
            reason=reason,
            samples_generated=self.received_samples,
            samples_sent=self.taken_samples,
            samples_played=self.played_samples,
            text_spoken="",
            text_remaining="".join(self.written),
            words=tuple(self.words),
            alignment=Alignment.ESTIMATED if self.words else Alignment.NONE,
        )
        return self._cut(whole)

    def settle(self, receipt: Receipt, *, dropped: bool) -> Receipt:
        """The worker's receipt as it is true here: sound that was ``dropped`` on this side was not heard, and its text
        remains. So does text that came too late for a worker that had given up."""
        known = len(receipt.text_spoken) + len(receipt.text_remaining)
        self.end_text()
        late = "".join(self.written)[known:]
        receipt = replace(receipt, text_remaining=receipt.text_remaining + late)
        if not dropped or self.taken_samples >= receipt.samples_sent:
            return replace(receipt, samples_played=self.played_samples)
        return self._cut(replace(receipt, samples_sent=self.taken_samples, samples_played=self.played_samples))

    def _cut(self, receipt: Receipt) -> Receipt:
        text = receipt.text_spoken + receipt.text_remaining
        heard = self.taken_samples if self.played_samples is None else self.played_samples
        timings = [WordTiming(w.start_char, w.end_char, w.start_sample, w.end_sample) for w in self.words]
        cut = split_spoken(text, timings, heard, fully_played=False)
        words = tuple(word for word in self.words if word.end_char <= cut)
        return replace(receipt, text_spoken=text[:cut], text_remaining=text[cut:], words=words)

    def ending(self, outcome: Outcome, reason: str, error: ErrorInfo | None = None) -> Ended:
        """A terminal event from this side."""
        return Ended(self.key, outcome, self.receipt(reason), error)
