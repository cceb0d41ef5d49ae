"""Client-side state of one utterance: text sent, audio received and delivered, and its playback report."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from tts_worker.errors import ErrorInfo
from tts_worker.text.decoding import TextDecoder
from tts_worker.text.spoken_words import cut_at
from tts_worker.types import Alignment, ChunkMeta, Ended, Outcome, PcmFrame, Receipt, Skipped, UtteranceKey, Word


class RemotePhase(Enum):
    """How far an utterance is: OPEN -> COMPLETE -> ENDED -> TERMINATED, or STOPPING -> TERMINATED after a STOP."""

    OPEN = "more text may follow"
    COMPLETE = "the worker has all text and may send audio"
    ENDED = "the worker sends no more, or is not waited for: received audio is still delivered"
    STOPPING = "received audio is dropped, the worker's report of the STOP is awaited"
    TERMINATED = "the terminal event was emitted to the caller"


@dataclass(slots=True, eq=False)
class RemoteUtterance:
    """An utterance of a remote session.

    Attributes:
        key: Identifies it to the caller.
        context: Identifies it on the wire.
        number: Identifies it on the wire, too, once it has started; None if the worker did not tell.
        decoder: Joins characters that are split between deltas.
        phase: How far it is.
        text_parts: Text sent so far.
        stop_reason: Reason of the STOP; "" if none was sent.
        failure: Error noticed on this side, emitted after the received audio.
        received_samples: Samples received from the worker.
        delivered_samples: Samples handed to the caller.
        played_samples: Playback position reported by the caller; None if not reported.
        frame_count: Frames received.
        words: Word timestamps received.
        skipped: What the voice skips, as far as it was received with them.
        alignment: Their source, in the worker's report; None before that.
    """

    key: UtteranceKey
    context: str
    number: int | None = None
    decoder: TextDecoder = field(default_factory=TextDecoder)
    phase: RemotePhase = RemotePhase.OPEN
    text_parts: list[str] = field(default_factory=list)
    stop_reason: str = ""
    failure: ErrorInfo | None = None
    received_samples: int = 0
    delivered_samples: int = 0
    played_samples: int | None = None
    frame_count: int = 0
    words: list[Word] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    alignment: Alignment | None = None

    @property
    def is_expecting_audio(self) -> bool:
        """Whether the worker may send audio that the caller shall hear."""
        return self.phase in (RemotePhase.OPEN, RemotePhase.COMPLETE)

    def write(self, text: str | bytes) -> str:
        """Append text and return its complete characters."""
        complete = self.decoder.feed(text)
        self.text_parts.append(complete)
        return complete

    def end_text(self) -> str:
        """Complete the text; return what an incomplete last character decodes to."""
        self.phase = RemotePhase.COMPLETE
        return self._end_decoding()

    def stop(self, reason: str) -> None:
        """Wait only for the worker's report of a STOP."""
        self.phase = RemotePhase.STOPPING
        self.stop_reason = reason

    def frame(self, pcm: bytes, samples: int) -> PcmFrame:
        """Build the next frame, of ``samples``. Its text range is the last word that begins before the frame ends."""
        start = self.received_samples
        end = self.received_samples + samples
        spoken = next((word for word in reversed(self.words) if word.start_sample < end), None)
        text_start, text_end = (spoken.start_char, spoken.end_char) if spoken is not None else (0, 0)
        frame = PcmFrame(
            self.key,
            self.frame_count,
            start,
            pcm,
            ChunkMeta(self.frame_count, text_start, text_end, start, 0.0),
            samples,
        )
        self.received_samples = end
        self.frame_count += 1
        return frame

    def report_played(self, samples: int) -> None:
        """Record the caller's playback position; it never decreases and never exceeds the delivered samples."""
        self.played_samples = max(self.played_samples or 0, min(max(samples, 0), self.delivered_samples))

    def _end_decoding(self) -> str:
        rest = self.decoder.end()
        self.text_parts.append(rest)
        return rest

    # -- playback report ----------------------------------------------------------------------------------------------

    def local_receipt(self, reason: str) -> Receipt:
        """Build the playback report from client-side state, for a worker that cannot send one."""
        self._end_decoding()
        whole = Receipt(
            reason=reason,
            samples_generated=self.received_samples,
            samples_sent=self.delivered_samples,
            samples_played=self.played_samples,
            text_spoken="",
            text_remaining="".join(self.text_parts),
            alignment=self.alignment or (Alignment.ESTIMATED if self.words else Alignment.NONE),
        )
        return self._split_at_playback(whole)

    def adjust_receipt(self, receipt: Receipt, *, dropped: bool) -> Receipt:
        """Correct the worker's report for what happened on this side, and keep its alignment for a later STOP.

        Text that the worker received too late counts as remaining. With ``dropped``, so does the text of audio that
        was received but not delivered, or not played by the caller's report, which the worker may not have. Without,
        ``at_playback`` follows.
        """
        self.alignment = receipt.alignment
        known = len(receipt.text_spoken) + len(receipt.text_remaining)
        self._end_decoding()
        late = "".join(self.text_parts)[known:]
        receipt = replace(receipt, text_remaining=receipt.text_remaining + late)
        if not dropped:
            return replace(receipt, samples_played=None) if self.played_samples is None else receipt
        is_delivered = self.delivered_samples >= receipt.samples_sent
        if is_delivered and self.played_samples in (None, receipt.samples_played):
            return replace(receipt, samples_played=self.played_samples)
        sent_samples = min(self.delivered_samples, receipt.samples_sent)
        return self._split_at_playback(replace(receipt, samples_sent=sent_samples, samples_played=self.played_samples))

    def at_playback(self, ended: Ended) -> Ended:
        """Return the terminal event with the position that the caller has reported since the worker's report."""
        if self.played_samples == ended.receipt.samples_played:
            return ended
        receipt = replace(ended.receipt, samples_played=self.played_samples)
        return replace(ended, receipt=receipt if ended.outcome is Outcome.DONE else self._split_at_playback(receipt))

    def _split_at_playback(self, receipt: Receipt) -> Receipt:
        skipped = {run.start: run for run in sorted([*self.skipped, *receipt.skipped])}  # the report's may be cut
        whole = replace(
            receipt,
            text_spoken=receipt.text_spoken + receipt.text_remaining,
            text_remaining="",
            words=tuple(self.words),
            skipped=tuple(skipped.values()),
        )
        return cut_at(whole, self.delivered_samples if self.played_samples is None else self.played_samples)

    def ended_event(self, outcome: Outcome, reason: str, error: ErrorInfo | None = None) -> Ended:
        """Build a terminal event from client-side state."""
        return Ended(self.key, outcome, self.local_receipt(reason), error)
