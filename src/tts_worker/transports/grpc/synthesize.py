"""One ``Synthesize`` call: an utterance of a session, as audio frames.

Owns what has left (positions are of frames that were handed to the wire, not of what the session gave out) and that
exactly one frame is final. Controls act in the moment they are called, also while a frame waits for a client that does
not read. Knows no call: ``frames()`` is iterated by whoever writes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from tts_worker.errors import IllegalCommand, SessionClosed, TTSWorkerError, as_exception
from tts_worker.session.machine import State
from tts_worker.session.session import LocalSession
from tts_worker.text.spoken_words import split_spoken
from tts_worker.transports.grpc import messages
from tts_worker.transports.grpc import tts_worker_pb2 as pb
from tts_worker.transports.grpc.frames import FrameShaper, ShapedFrame, StreamFormat
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Acknowledged,
    ControlName,
    Ended,
    Outcome,
    Output,
    PcmFrame,
    Receipt,
    Word,
    Words,
    WordTiming,
)


class SynthesizeCall:
    """``session`` is this utterance's alone as long as it lasts. ``generation`` numbers the utterances of the session
    that the client knows."""

    def __init__(self, session: LocalSession, session_id: str, generation: int, stream_format: StreamFormat) -> None:
        self.session = session
        self.generation = generation
        self.finished = False
        self.emitted_samples = 0
        """At the stream's rate."""
        self._session_id = session_id
        self._stream_format = stream_format
        self._shaper = FrameShaper(stream_format)
        self._items: deque[Output] = deque()  # taken from the session by a control, not looked at yet
        self._ready: deque[pb.AudioFrame] = deque()
        self._words: list[Word] = []
        self._sequence = 0
        self._receipt: Receipt | None = None
        self._failure: TTSWorkerError | None = None
        self._text_ended = False
        self._stopped = False
        self._key = session.speak("")  # the utterance begins: the engine prepares before the first word

    @property
    def state(self) -> State:
        """IDLE once nothing more will sound."""
        if self.finished or self._stopped or self._failure is not None:
            return State.IDLE
        return State.PAUSED if self.session.state is State.PAUSED else State.SPEAKING

    # -- text ---------------------------------------------------------------------------------------------------------

    def write(self, text: str, *, flush: bool = False, last: bool = False) -> None:
        """Raises TextTooLong, and IllegalCommand for text after the last. Text of an utterance that has ended is
        dropped: its writer has not heard of it yet."""
        if self.session.state is State.CLOSED or self._receipt is not None or self.finished:
            return
        if self.session.writing != self._key:
            if text and self._text_ended:
                raise IllegalCommand("there is text after the last chunk: is_final ends an utterance")
            if text:
                raise IllegalCommand("the writer was silent for too long and its text was ended (text_idle_timeout)")
            return
        if text:
            self.session.speak(text)
        if flush:
            self.session.flush()
        if last:
            self._text_ended = True
            self.session.end_text()

    def fail(self, error: TTSWorkerError) -> None:
        """End it, because of the client or the way to it."""
        if self._failure is None and not self.finished:
            self._failure = error
            self._forget()
            self.session.wake()

    # -- control ------------------------------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Returns whether it changed anything. From here on no sound leaves."""
        self.session.pause()
        return self._acknowledged(ControlName.PAUSE)

    def resume(self) -> bool:
        self.session.resume()
        applied = self._acknowledged(ControlName.RESUME)
        waiting = self._shaper.buffered_samples + sum(frame.speech_samples for frame in self._ready)
        if applied and waiting:
            # The listener has played all it had; what was held back here is the first that it gets of its lead.
            self.session.pacer.sent(self._stream_format.to_engine(waiting), asyncio.get_running_loop().time())
        return applied

    def stop(self, reason: str, played_samples: int | None = None) -> Receipt | None:
        """End it now; returns what became of it, None if it had ended before. ``played_samples``: at the stream's
        rate. From here on no sound leaves but what waits in the transport already."""
        if self.finished:
            return None
        told = None if played_samples is None else min(played_samples, self.emitted_samples)
        if self.session.state is not State.CLOSED:
            heard = self.emitted_samples if told is None else told
            self.session.stop(reason, self._stream_format.to_engine(heard))
            while not isinstance(item := self.session.poll(), Acknowledged) and item is not None:
                if isinstance(item, Ended) and item.key == self._key:
                    return self._cut_short(item.receipt, reason, told)
        while self._items:
            self._take(self._items.popleft())
        if self._receipt is None or self._stopped or self._failure is not None:
            if self._failure is not None:
                self._forget()
            return None
        return self._cut_short(self._receipt, reason, told)

    def abandon(self, reason: str) -> None:
        """Stop because the call ended; its remaining output is discarded."""
        if self.session.state is not State.CLOSED and not self.finished:
            self.session.stop(reason, self._stream_format.to_engine(self.emitted_samples))
            while self.session.poll() is not None:
                pass  # nobody will ask for its end; the metrics hear of it now and not with the next utterance
        self._forget()
        self.finished = True

    def _acknowledged(self, command: ControlName) -> bool:
        """Notices come before sound, so this takes no frame."""
        while (item := self.session.poll()) is not None:
            if isinstance(item, Acknowledged) and item.command is command:
                return item.applied
            self._items.append(item)
        return False

    # -- the way out --------------------------------------------------------------------------------------------------

    async def frames(self) -> AsyncIterator[pb.AudioFrame]:
        """Frames as they are due; the last one is final. Raises what made the utterance fail."""
        while not self.finished:
            item = self._items.popleft() if self._items else self.session.poll()
            if item is not None:
                self._take(item)
            if self._failure is not None and not self._ready:
                self.finished = True
                raise self._failure
            if self._ready and self.session.state is not State.PAUSED:
                frame = self._ready.popleft()
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

    def _take(self, item: Output) -> None:
        if item.key != self._key or self._receipt is not None:
            return  # of an utterance before this one
        if isinstance(item, Words):
            self._words.extend(item.words)
        elif isinstance(item, PcmFrame):
            self._count_held_back(item)
            self._send(self._shaper.push(item.pcm))
        elif isinstance(item, Ended):
            self._on_ended(item)

    def _count_held_back(self, frame: PcmFrame) -> None:
        """A listener who has run dry gets first what was held back here: it is part of the lead, or that would be
        longer by as much from then on."""
        pacer = self.session.pacer
        now_s = asyncio.get_running_loop().time()
        held = self._stream_format.to_engine(self._shaper.buffered_samples)
        missing = held + frame.samples - round(pacer.lead_at_s(now_s) * SAMPLE_RATE_HZ)
        if held and missing > 0:
            pacer.sent(missing, now_s)

    def _on_ended(self, ended: Ended) -> None:
        self._receipt = ended.receipt
        if ended.outcome is Outcome.STOPPED:  # a pause too long, a drain, the session's end: stop() sees to its own
            self._cut_short(ended.receipt, ended.receipt.reason, None)
        elif ended.error is not None:
            self._send(self._shaper.finish())
            self._failure = as_exception(ended.error)
        else:
            frames = self._shaper.finish()
            self._send(frames)
            self._end(ended.receipt, ended.outcome)

    def _send(self, frames: Iterable[ShapedFrame]) -> None:
        for frame in frames:
            words, self._words = self._words_until(frame.start_sample + frame.samples)
            self._ready.append(
                pb.AudioFrame(
                    session_id=self._session_id,
                    audio_data=frame.pcm,
                    sample_rate=self._stream_format.sample_rate_hz,
                    frame_duration_ms=self._stream_format.to_ms(len(frame.pcm) // 2),
                    generation=self.generation,
                    pts_samples=frame.start_sample,
                    speech_samples=frame.samples,
                    words=messages.encode_words(words, self._stream_format),
                )
            )

    def _words_until(self, end_sample: int) -> tuple[list[Word], list[Word]]:
        count = 0
        while count < len(self._words) and self._stream_format.to_stream(self._words[count].start_sample) < end_sample:
            count += 1
        return self._words[:count], self._words[count:]

    def _cut_short(self, receipt: Receipt, reason: str, told_samples: int | None) -> Receipt:
        """Nothing leaves any more but an end marker."""
        self._items.clear()
        self._forget()
        self._stopped = True
        self._receipt = self._cut(receipt, reason, told_samples)
        self._end(self._receipt, Outcome.STOPPED)
        return self._receipt

    def _end(self, receipt: Receipt, outcome: Outcome) -> None:
        """Make the last frame that waits the final one, or an end marker where none does."""
        if not self._ready:
            self._ready.append(
                pb.AudioFrame(
                    session_id=self._session_id,
                    sample_rate=self._stream_format.sample_rate_hz,
                    generation=self.generation,
                    pts_samples=self.emitted_samples,
                )
            )
        final = self._ready[-1]
        final.is_final = True
        final.words.extend(messages.encode_words(self._words, self._stream_format))
        final.receipt.CopyFrom(messages.encode_receipt(receipt, outcome, self._stream_format))

    def _forget(self) -> None:
        self._ready.clear()
        self._words.clear()
        self._shaper = FrameShaper(self._stream_format)

    def _cut(self, receipt: Receipt, reason: str, told_samples: int | None) -> Receipt:
        """The receipt by what left here, which is a little less than what the session gave out."""
        heard = self._stream_format.to_engine(self.emitted_samples if told_samples is None else told_samples)
        text = receipt.text_spoken + receipt.text_remaining
        timings = [WordTiming(w.start_char, w.end_char, w.start_sample, w.end_sample) for w in receipt.words]
        cut = min(split_spoken(text, timings, heard, fully_played=False), len(receipt.text_spoken))
        return replace(
            receipt,
            reason=reason,
            samples_sent=self._stream_format.to_engine(self.emitted_samples),
            samples_played=None if told_samples is None else heard,
            text_spoken=text[:cut],
            text_remaining=text[cut:],
            words=tuple(word for word in receipt.words if word.end_char <= cut),
        )
