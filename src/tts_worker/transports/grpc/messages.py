"""Conversion of playback reports, words and errors to and from protobuf.

A field that an older or newer peer does not set has its default and is never an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.transports.grpc import tts_worker_pb2 as pb
from tts_worker.transports.grpc.frames import StreamFormat
from tts_worker.types import SAMPLE_RATE_HZ, Alignment, ControlName, Outcome, Receipt, Word

PROTOCOL_VERSION = 1

NATIVE = StreamFormat(SAMPLE_RATE_HZ)
"""The engine's own rate; positions stay unchanged."""

COMMANDS = {ControlName.PAUSE: pb.PAUSE, ControlName.RESUME: pb.RESUME, ControlName.STOP: pb.STOP}
CONTROL_NAMES = {number: name for name, number in COMMANDS.items()}


def encode_words(words: Iterable[Word], stream_format: StreamFormat = NATIVE) -> list[pb.Word]:
    """Encode words with positions in samples of the stream."""
    return [
        pb.Word(
            text=word.text,
            char_start=word.start_char,
            char_end=word.end_char,
            start_sample=stream_format.to_stream(word.start_sample),
            end_sample=stream_format.to_stream(word.end_sample),
            start_ms=NATIVE.to_ms(word.start_sample),
            end_ms=NATIVE.to_ms(word.end_sample),
        )
        for word in words
    ]


def parse_words(messages: Iterable[pb.Word]) -> tuple[Word, ...]:
    return tuple(Word(m.text, m.char_start, m.char_end, m.start_sample, m.end_sample) for m in messages)


def encode_receipt(receipt: Receipt, outcome: Outcome, stream_format: StreamFormat = NATIVE) -> pb.Receipt:
    message = pb.Receipt(
        outcome=outcome.value,
        reason=receipt.reason,
        samples_generated=stream_format.to_stream(receipt.samples_generated),
        samples_sent=stream_format.to_stream(receipt.samples_sent),
        text_spoken=receipt.text_spoken,
        text_remaining=receipt.text_remaining,
        words=encode_words(receipt.words, stream_format),
        alignment=receipt.alignment.value,
    )
    if receipt.samples_played is not None:
        message.samples_played = stream_format.to_stream(receipt.samples_played)
    return message


def parse_receipt(message: pb.Receipt) -> Receipt:
    known = (alignment for alignment in Alignment if alignment.value == message.alignment)
    return Receipt(
        reason=message.reason,
        samples_generated=message.samples_generated,
        samples_sent=message.samples_sent,
        samples_played=message.samples_played if message.HasField("samples_played") else None,
        text_spoken=message.text_spoken,
        text_remaining=message.text_remaining,
        words=parse_words(message.words),
        alignment=next(known, Alignment.ESTIMATED),
    )


def parse_outcome(message: pb.Receipt) -> Outcome:
    """Parse the outcome; an unknown one of a newer worker becomes DONE."""
    return next((outcome for outcome in Outcome if outcome.value == message.outcome), Outcome.DONE)


def encode_error(error: ErrorInfo) -> pb.Error:
    message = pb.Error(code=error.code.value, message=error.message, retryable=error.retryable)
    if error.retry_after_s is not None:
        message.retry_after_s = error.retry_after_s
    return message


def parse_error(message: pb.Error) -> ErrorInfo:
    """Parse an error; an unknown code becomes INTERNAL and keeps the worker's ``retryable``."""
    code = next((known for known in ErrorCode if known.value == message.code), ErrorCode.INTERNAL)
    retry_after_s = message.retry_after_s if message.HasField("retry_after_s") else None
    return ErrorInfo(code, message.message or "the worker reported an error", message.retryable, retry_after_s)
