"""Behaviors of a session that chose a sample rate and an encoding. The positions of its reports count samples at that
rate; pacing, STOP and PAUSE are as at 24 kHz."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.behavior.table import FAST, LONG, BehaviorContext, behavior
from tests.fakes.tone_factory import FaultAt
from tts_worker.audio.encoders import wav_header
from tts_worker.audio.g711 import encode_mulaw
from tts_worker.audio.resampler import Resampler
from tts_worker.client import SessionOptions
from tts_worker.engine.tone import Fault, ToneSettings
from tts_worker.errors import TTSWorkerError
from tts_worker.types import ControlName, Ended, Outcome, PcmFrame, Words

TEXT = "Hello there."


async def synthesize(
    context: BehaviorContext, options: SessionOptions, text: str = TEXT
) -> tuple[list[PcmFrame], Ended, list[Words]]:
    """Speak a text; return its frames, its end and its words. The encoding may be any."""
    session = (await context.client.open(options)).session
    session.speak(text)
    session.end_text()
    frames: list[PcmFrame] = []
    words: list[Words] = []
    async for item in session:
        if isinstance(item, PcmFrame):
            assert item.start_sample == sum(frame.samples for frame in frames)
            frames.append(item)
        elif isinstance(item, Words):
            words.append(item)
        elif isinstance(item, Ended):
            session.close()
            return frames, item, words
    raise AssertionError("the session closed")


@behavior("formats")
async def every_rate_is_the_whole_resampled(context: BehaviorContext) -> None:
    text = LONG[:60]  # longer than the credit of an utterance, which the session must return
    native, _, native_words = await synthesize(context, FAST, text)
    pcm = b"".join(frame.pcm for frame in native)
    for rate_hz in (8_000, 22_050, 24_000, 48_000):
        frames, ended, words = await synthesize(context, replace(FAST, sample_rate=rate_hz), text)
        resampler = Resampler(24_000, rate_hz)
        expected = resampler.process(pcm) + resampler.flush()
        found = b"".join(frame.pcm for frame in frames)
        assert len(found) == len(expected)
        assert (
            max(abs(a - b) for a, b in zip(memoryview(found).cast("h"), memoryview(expected).cast("h"), strict=True))
            <= 1
        )
        assert {frame.samples for frame in frames[:-1]} == {rate_hz // 50}
        assert ended.receipt.samples_sent == ended.receipt.samples_generated == len(found) // 2
        scaled = [w.start_sample * rate_hz // 24_000 for item in native_words for w in item.words]
        assert [w.start_sample for item in words for w in item.words] == scaled
        assert [w.start_sample for w in ended.receipt.words] == scaled


@behavior("formats")
async def telephone_encodings_are_8_khz(context: BehaviorContext) -> None:
    frames, _, _ = await synthesize(context, replace(FAST, sample_rate=8_000))
    coded, ended, _ = await synthesize(context, replace(FAST, encoding="mulaw"))
    assert b"".join(frame.pcm for frame in coded) == encode_mulaw(b"".join(frame.pcm for frame in frames))
    assert {len(frame.pcm) for frame in coded[:-1]} == {160}
    assert ended.receipt.samples_sent == sum(frame.samples for frame in frames)


@behavior("formats")
async def wav_downloads_begin_with_one_header(context: BehaviorContext) -> None:
    options = SessionOptions(realtime=False, raw_chunks=True, sample_rate=16_000, encoding="wav")
    frames, ended, _ = await synthesize(context, options)
    file = b"".join(frame.pcm for frame in frames)
    assert file.startswith(wav_header(16_000))
    assert ended.receipt.samples_sent == (len(file) - 44) // 2
    assert file[44:] == b"".join(f.pcm for f in (await synthesize(context, replace(options, encoding=None)))[0])


@behavior("formats")
async def opus_sends_one_packet_a_frame(context: BehaviorContext) -> None:
    pytest.importorskip("av", reason="needs the extra 'media'")
    _, native, _ = await synthesize(context, FAST)
    frames, ended, _ = await synthesize(context, replace(FAST, encoding="opus"))
    samples = native.receipt.samples_sent
    assert {frame.samples for frame in frames} == {480}
    assert samples < ended.receipt.samples_sent < samples + 2 * 480
    assert all(0 < len(frame.pcm) < 400 for frame in frames)


async def _control_and_stop(context: BehaviorContext, rate_hz: int) -> None:
    recorder = await context.open(SessionOptions(lead_ms=60, sample_rate=rate_hz))
    assert recorder.session.sample_rate_hz == rate_hz
    clock = asyncio.get_running_loop().time
    requested_s = clock()
    key = recorder.session.speak(LONG)
    recorder.session.end_text()
    await recorder.receive_samples(rate_hz // 5, key)
    # Playback cannot begin before the request; 20 ms cover the rounding of clocks and frames.
    assert len(recorder.pcm[key]) / 2 / rate_hz - (clock() - requested_s) <= 0.060 + 0.020
    recorder.session.pause()
    paused = await recorder.wait_acknowledged(ControlName.PAUSE)
    assert paused.position_samples == len(recorder.pcm[key]) // 2
    recorder.session.resume()
    await recorder.receive_samples(3 * rate_hz // 10, key)  # the recorder finds no sample missing or repeated
    played_samples = rate_hz // 4
    recorder.session.stop(played_samples=played_samples)
    ended = await recorder.wait_ended(key)
    assert ended.outcome is Outcome.STOPPED
    assert ended.receipt.samples_played == played_samples
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == LONG
    # The tone engine speaks 60 ms a character: the report splits the text at 250 ms at any rate.
    assert len(ended.receipt.text_spoken) <= 5
    pcm = recorder.pcm[key]
    _, native, _ = await synthesize(context, FAST, "Ok.")
    again = await recorder.synthesize("Ok.")
    assert again.receipt.samples_sent == -(-native.receipt.samples_sent * rate_hz // 24_000)
    assert recorder.pcm[key] == pcm, "audio after STOP"


@behavior("formats", engine=ToneSettings(fault=FaultAt(Fault.FAIL, 60)))
async def a_failure_reports_positions_at_the_rate(context: BehaviorContext) -> None:
    for rate_hz in (8_000, 48_000):
        frames, ended, _ = await synthesize(context, replace(FAST, sample_rate=rate_hz), LONG)
        assert ended.outcome is Outcome.ERROR
        receipt = ended.receipt
        assert 0 < receipt.samples_sent == sum(frame.samples for frame in frames)
        assert receipt.text_spoken + receipt.text_remaining == LONG
        # Letters of the tone engine take 60 ms, and pauses as long at most; the last word may be cut.
        sent_chars = receipt.samples_sent / (0.060 * rate_hz)
        assert sent_chars / 2 - 10 < len(receipt.text_spoken) < 2 * sent_chars + 10
        assert receipt.words[-1].start_sample < receipt.samples_sent


@behavior("formats")
async def utterances_queue_at_8_and_48_khz(context: BehaviorContext) -> None:
    for rate_hz in (8_000, 48_000):
        recorder = await context.open(replace(FAST, sample_rate=rate_hz))
        keys = []
        for text in ("One two.", "Three.", "Four five six."):
            keys.append(recorder.session.speak(text))
            recorder.session.end_text()
        for key, text in zip(keys, ("One two.", "Three.", "Four five six."), strict=True):
            ended = await recorder.wait_ended(key)
            assert ended.outcome is Outcome.DONE
            assert ended.receipt.text_spoken == text
            assert ended.receipt.samples_sent == len(recorder.pcm[key]) // 2
            assert ended.receipt.words[-1].end_sample <= ended.receipt.samples_sent


@behavior("formats")
async def controls_work_at_8_khz(context: BehaviorContext) -> None:
    await _control_and_stop(context, 8_000)


@behavior("formats")
async def controls_work_at_48_khz(context: BehaviorContext) -> None:
    await _control_and_stop(context, 48_000)


@behavior("formats")
async def unknown_formats_are_rejected(context: BehaviorContext) -> None:
    for options, name in (
        (SessionOptions(sample_rate=12), "sample_rate"),
        (SessionOptions(encoding="mp3"), "encoding"),
        (SessionOptions(encoding="mulaw", sample_rate=16_000), "8000"),
        (SessionOptions(encoding="wav"), "realtime"),
        (SessionOptions(encoding="opus", frame_ms=30), "frame_ms"),
    ):
        error = await context.open_error(options)
        assert isinstance(error, TTSWorkerError)
        assert error.info.code.value == "invalid_request"
        assert name in str(error)
