"""Only a few container formats are decoded, checked by the first bytes and by the decoder."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from tts_worker.audio.decode import read_recording
from tts_worker.errors import InvalidRequest
from tts_worker.features.conversion.windows import recording_windows
from tts_worker.voices.enrollment import read_prompt

TONE = (0.3 * np.sin(np.arange(24_000) / 9)).astype(np.float32)
ALLOWED = {"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "AIFF", "CAF"}


def encoded(kind: str, subtype: str | None = None) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, TONE, 24_000, format=kind, subtype=subtype)
    return out.getvalue()


def mp3_without_tags() -> bytes:
    raw = encoded("MP3")
    return raw if raw[:3] != b"ID3" else raw[raw.index(b"\xff\xfb") :]


@pytest.mark.parametrize("kind", sorted(ALLOWED))
def test_supported_container_is_read(tmp_path: Path, kind: str) -> None:
    raw = encoded(kind)
    (tmp_path / "prompt").write_bytes(raw)
    for recording in (read_recording(raw), read_recording(tmp_path / "prompt"), read_prompt(raw)):
        assert recording.rate_hz == 24_000
        assert recording.seconds == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("order", ["LITTLE", "BIG"])
def test_wav_whose_sizes_were_never_written_is_read(tmp_path: Path, order: str) -> None:
    out = io.BytesIO()
    soundfile.write(out, TONE, 24_000, format="WAV", endian=order)
    raw = bytearray(out.getvalue())
    data_at = raw.index(b"data") + 8
    raw[4:8] = raw[data_at - 4 : data_at] = bytes(4)
    (tmp_path / "prompt").write_bytes(raw)
    for recording in (read_recording(bytes(raw)), read_recording(tmp_path / "prompt")):
        assert len(recording.samples) == len(TONE)


@given(st.binary(max_size=60))
def test_chunks_of_a_wav_may_be_anything(chunks: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_recording(b"RIFF\0\0\0\0WAVE" + chunks)


def test_six_channels_are_averaged() -> None:
    out = io.BytesIO()
    soundfile.write(out, np.repeat(TONE[:, None], 6, axis=1), 24_000, format="WAV")
    assert np.allclose(read_prompt(out.getvalue()).samples, TONE, atol=1e-3)


def test_mp3_without_tags_is_read() -> None:
    assert read_recording(mp3_without_tags()).seconds == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("kind", sorted(set(soundfile.available_formats()) - ALLOWED - {"RAW"}))
def test_other_container_is_rejected(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "prompt"
    subtype = {"WVE": "ALAW", "XI": "DPCM_16", "VOC": "PCM_16"}.get(kind)
    try:
        soundfile.write(file, TONE, 8_000 if kind == "WVE" else 24_000, format=kind, subtype=subtype)
    except (ValueError, soundfile.LibsndfileError):
        pytest.skip("this libsndfile cannot write the format")
    with pytest.raises(InvalidRequest, match="WAV, FLAC, Ogg, MP3"):
        read_recording(file)
    for read in (read_recording, read_prompt):
        with pytest.raises(InvalidRequest, match="WAV, FLAC, Ogg, MP3"):
            read(file.read_bytes())


@pytest.mark.parametrize("disguise", [b"ID3\x03\x00\x00\x00\x00\x00\x00", b"\xff\xfb\x90\x00"])
def test_disguised_container_is_rejected(disguise: bytes) -> None:
    with pytest.raises(InvalidRequest, match="WAV, FLAC, Ogg, MP3"):
        read_recording(disguise + encoded("AU"))


def silence(seconds: int, rate_hz: int, channels: int) -> bytes:
    """A FLAC file of a few kilobytes per second at any rate."""
    out = io.BytesIO()
    with soundfile.SoundFile(out, "w", rate_hz, channels, format="FLAC", subtype="PCM_16") as file:
        for _ in range(seconds):
            file.write(np.zeros((rate_hz, channels), np.int16))
    return out.getvalue()


@pytest.mark.parametrize("read", [read_recording, read_prompt, recording_windows])
def test_high_sample_rate_is_rejected_before_decoding(read: Callable[[bytes], object]) -> None:
    small_file = silence(5, 655_350, 8)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="655350 Hz"):
            read(small_file)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(small_file)
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_channels() -> None:
    small_file = silence(20, 48_000, 8)
    mono_bytes = 20 * 48_000 * 4
    tracemalloc.start()
    try:
        assert read_recording(small_file).seconds == 20
        assert tracemalloc.get_traced_memory()[1] < 3.5 * mono_bytes
    finally:
        tracemalloc.stop()
