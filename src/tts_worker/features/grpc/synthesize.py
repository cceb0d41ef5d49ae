"""One ``Synthesize`` call: an utterance of a session as audio frames.

Positions count samples of frames handed to gRPC, not of frames taken from the session. Exactly one frame is final.
Controls take effect immediately, even while a write waits for a client that does not read.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from tts_worker.errors import IllegalCommand, SessionClosed, TTSWorkerError, as_exception
from tts_worker.features.grpc.frames import FrameShaper, ShapedFrame, StreamFormat
from tts_worker.protocol import proto_codec
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.session.session import LocalSession
from tts_worker.text.spoken_words import cut_at
from tts_worker.types import Ended, Outcome, Output, PcmFrame, Receipt, State, Word, Words


class SynthesizeCall:
    """The utterance of one ``Synthesize`` call.

    Attributes:
        session: Hub session; used by this utterance alone until it ends.
        generation: Number of the utterance within the client's session, from 1.
        finished: Whether the final frame was handed out or the call has ended.
        emitted_samples: Speech samples handed to gRPC.
    """

    def __init__(self, session: LocalSession, session_id: str, generation: int, stream_format: StreamFormat) -> None:
        self.session = session
        self.generation = generation
        self.finished = False
        self.emitted_samples = 0
        self._session_id = session_id
        self._stream_format = stream_format
        self._shaper = FrameShaper(stream_format)
        self._ready_frames: deque[pb.AudioFrame] = deque()
        self._words: list[Word] = []
        self._sequence = 0
        self._receipt: Receipt | None = None
        self._failure: TTSWorkerError | None = None
        self._text_ended = False
        self._stopped = False
        self._key = session.speak("")  # opens the utterance, so the engine prepares before the first text

    @property
    def state(self) -> State:
        """IDLE once no more audio will be emitted."""
        if self.finished or self._stopped or self._failure is not None:
            return State.IDLE
        return State.PAUSED if self.session.state is State.PAUSED else State.SPEAKING

    # -- text ---------------------------------------------------------------------------------------------------------

    def write(self, text: str, *, flush: bool = False, last: bool = False) -> None:
        """Add text; text for an ended utterance is dropped, because the client may not know yet.

        Args:
            text: Text to append.
            flush: Synthesize all text received so far.
            last: No text follows.

        Raises:
            TextTooLong: The utterance exceeds its limit.
            IllegalCommand: Text follows the last chunk or an idle timeout.
        """
        if self.session.state is State.CLOSED or self._receipt is not None or self.finished:
            return
        if self.session.writing != self._key:
            if text and self._text_ended:
                raise IllegalCommand("text after the last chunk: is_final ends an utterance")
            if text:
                raise IllegalCommand("no text was received for text_idle_timeout, which ended the utterance's text")
            return
        if text:
            self.session.speak(text)
        if flush:
            self.session.flush()
        if last:
            self._text_ended = True
            self.session.end_text()

    def fail(self, error: TTSWorkerError) -> None:
        """End the call with ``error``; unsent audio is discarded."""
        if self._failure is None and not self.finished:
            self._failure = error
            self._discard_audio()
            self.session.wake()

    # -- control ------------------------------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Stop emitting frames. Returns whether the state changed."""
        return self.session.pause().applied

    def resume(self) -> bool:
        """Continue after a pause. Returns whether the state changed."""
        applied = self.session.resume().applied
        buffered = self._shaper.buffered_samples + sum(frame.speech_samples for frame in self._ready_frames)
        if applied and buffered:
            # The client's buffer has run empty; audio buffered here is the first part of its new playout lead.
            self.session.pacer.record_sent(buffered, asyncio.get_running_loop().time())
        return applied

    def stop(self, reason: str, played_samples: int | None = None) -> Receipt | None:
        """End the utterance; only audio already in the transport is still delivered.

        Args:
            reason: Reason in the playback report.
            played_samples: Samples that the client reports as played; None if unknown.

        Returns:
            The playback report, or None if the utterance had ended before.
        """
        if self.finished:
            return None
        was_stopped = self._stopped
        reported = None if played_samples is None else min(played_samples, self.emitted_samples)
        if self.session.state is not State.CLOSED:
            position = self.emitted_samples if reported is None else reported
            self.session.stop(reason, position)
            while (item := self.session.poll()) is not None:  # reports only: a stopped session has no audio
                self._process(item)
        if self._failure is not None:
            self._discard_audio()
            return None
        if self._receipt is None or was_stopped:
            return None
        return self._truncate(self._receipt, reason, reported)

    def abandon(self, reason: str) -> None:
        """Stop because the call ended; its remaining output is discarded."""
        if self.session.state is not State.CLOSED and not self.finished:
            self.session.stop(reason, self.emitted_samples)
            while self.session.poll() is not None:
                pass  # polling the terminal event counts the utterance in the metrics now
        self._discard_audio()
        self.finished = True

    # -- frames -------------------------------------------------------------------------------------------------------

    async def frames(self) -> AsyncIterator[pb.AudioFrame]:
        """Yield frames when they are due; the last one is final. Raises the error that ended the utterance."""
        while not self.finished:
            item = self.session.poll()
            if item is not None:
                self._process(item)
            if self._failure is not None and not self._ready_frames:
                self.finished = True
                raise self._failure
            if self._ready_frames and self.session.state is not State.PAUSED:
                frame = self._ready_frames.popleft()
                self.emitted_samples += frame.speech_samples
                self._sequence += 1
                frame.sequence_number = self._sequence
                self.finished = frame.is_final
                yield frame
            elif item is None:
                if self.session.state is State.CLOSED:
                    self._failure = self._failure or SessionClosed("the session was closed")
                else:
                    await self.session.wait()

    def _process(self, item: Output) -> None:
        if item.key != self._key or self._receipt is not None:
            return  # of another utterance of the session, or an acknowledgement after the end
        match item:
            case Words():
                self._words.extend(item.words)
            case PcmFrame():
                self._count_buffered(item)
                self._enqueue(self._shaper.push(item.pcm))
            case Ended():
                self._on_ended(item)

    def _count_buffered(self, frame: PcmFrame) -> None:
        """After an underrun, count audio buffered here toward the lead, which would otherwise grow by as much."""
        pacer = self.session.pacer
        now_s = asyncio.get_running_loop().time()
        buffered = self._shaper.buffered_samples
        missing = buffered + frame.samples - round(pacer.lead_at_s(now_s) * self._stream_format.sample_rate_hz)
        if buffered and missing > 0:
            pacer.record_sent(missing, now_s)

    def _on_ended(self, ended: Ended) -> None:
        self._receipt = ended.receipt
        if ended.outcome is Outcome.STOPPED:  # by a pause timeout, a drain or the session's end, not by stop()
            self._truncate(ended.receipt, ended.receipt.reason, None)
        elif ended.error is not None:
            self._enqueue(self._shaper.finish())
            self._failure = as_exception(ended.error)
        else:
            self._enqueue(self._shaper.finish())
            self._mark_final(ended.receipt, ended.outcome)

    def _enqueue(self, frames: Iterable[ShapedFrame]) -> None:
        for frame in frames:
            words = self._take_words_until(frame.start_sample + frame.samples)
            self._ready_frames.append(
                pb.AudioFrame(
                    session_id=self._session_id,
                    audio_data=frame.pcm,
                    sample_rate=self._stream_format.sample_rate_hz,
                    frame_duration_ms=self._stream_format.to_ms(len(frame.pcm) // 2),
                    generation=self.generation,
                    pts_samples=frame.start_sample,
                    speech_samples=frame.samples,
                    words=proto_codec.encode_words(words, self._stream_format.sample_rate_hz),
                    sha256=hashlib.sha256(frame.pcm).hexdigest() if self._stream_format.checksums else "",
                )
            )

    def _take_words_until(self, end_sample: int) -> list[Word]:
        count = 0
        while count < len(self._words) and self._words[count].start_sample < end_sample:
            count += 1
        words = self._words[:count]
        del self._words[:count]
        return words

    def _truncate(self, receipt: Receipt, reason: str, reported_samples: int | None) -> Receipt:
        """Discard unsent audio and leave only an end marker to send. Returns the truncated playback report."""
        self._discard_audio()
        self._stopped = True
        self._receipt = self._truncated_receipt(receipt, reason, reported_samples)
        self._mark_final(self._receipt, Outcome.STOPPED)
        return self._receipt

    def _mark_final(self, receipt: Receipt, outcome: Outcome) -> None:
        """Mark the last ready frame as final; add an empty end marker if no frame is ready."""
        if not self._ready_frames:
            self._ready_frames.append(
                pb.AudioFrame(
                    session_id=self._session_id,
                    sample_rate=self._stream_format.sample_rate_hz,
                    generation=self.generation,
                    pts_samples=self.emitted_samples,
                )
            )
        final = self._ready_frames[-1]
        final.is_final = True
        final.words.extend(proto_codec.encode_words(self._words, self._stream_format.sample_rate_hz))
        final.receipt.CopyFrom(proto_codec.encode_receipt(receipt, outcome, self._stream_format.sample_rate_hz))

    def _discard_audio(self) -> None:
        self._ready_frames.clear()
        self._words.clear()
        self._shaper = FrameShaper(self._stream_format)

    def _truncated_receipt(self, receipt: Receipt, reason: str, reported_samples: int | None) -> Receipt:
        """Reduce the report to the samples emitted or reported here, fewer than the session handed out."""
        played = self.emitted_samples if reported_samples is None else reported_samples
        return replace(
            cut_at(receipt, played),
            reason=reason,
            samples_sent=self.emitted_samples,
            samples_played=None if reported_samples is None else played,
        )
