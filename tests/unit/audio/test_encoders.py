from __future__ import annotations

import io
import struct
import wave
from itertools import pairwise

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.encoders import AudioFormat, open_encoder, wav_file, wav_header
from tts_worker.errors import InvalidRequest

RATE = 24_000
_AAC_DELAY = 1_024
"""Samples that the encoder puts before the audio; ADTS cannot tell a player to skip them."""
CONTAINERS = [AudioFormat.WAV, AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.FLAC]
LOSSY = {AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.AAC}
G711 = {AudioFormat.MULAW: "ULAW", AudioFormat.ALAW: "ALAW"}


def rate_of(audio_format: AudioFormat) -> int:
    return 8_000 if audio_format in G711 else RATE


def music(samples: int, rate_hz: int = RATE) -> bytes:
    time_s = np.arange(samples) / rate_hz
    return (9000 * np.sin(2 * np.pi * 300 * time_s) + 3000 * np.sin(2 * np.pi * 1130 * time_s)).astype("<i2").tobytes()


def encode(audio_format: AudioFormat, pcm: bytes, cuts: list[int]) -> bytes:
    encoder = open_encoder(audio_format, rate_of(audio_format))
    edges = [0, *sorted(2 * (cut % (len(pcm) // 2 + 1)) for cut in cuts), len(pcm)]
    return b"".join([*(encoder.encode(pcm[a:b]) for a, b in pairwise(edges)), encoder.finish()])


def decode(audio_format: AudioFormat, data: bytes) -> np.ndarray:
    """int16 samples, by libsndfile's decoders."""
    if audio_format in G711:
        samples, _ = soundfile.read(
            io.BytesIO(data), dtype="int16", format="RAW", subtype=G711[audio_format], samplerate=8_000, channels=1
        )
        return samples
    if audio_format is AudioFormat.PCM:
        return np.frombuffer(data, "<i2")
    if audio_format is AudioFormat.AAC:
        return decode_aac(data)
    if audio_format is AudioFormat.FLAC:
        data = with_flac_length(data)
    samples, rate_hz = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate_hz == RATE
    return samples


def decode_aac(data: bytes) -> np.ndarray:
    av = pytest.importorskip("av", reason="needs the extra media")
    with av.open(io.BytesIO(data), format="aac") as file:
        assert file.streams.audio[0].rate == RATE
        planes = [frame.to_ndarray()[0] for frame in file.decode(audio=0)]
    samples = np.concatenate(planes)[_AAC_DELAY:]
    return (samples * 32_768).clip(-32_768, 32_767).astype(np.int16)


def with_flac_length(data: bytes) -> bytes:
    """Fill in the length of a FLAC stream, which declares it as unknown (36 zero bits of its first block).

    Playing decoders read to the end of the stream; ``soundfile.read`` allocates by the length, so the test counts the
    samples of the frames.
    """
    if int.from_bytes(data[21:26], "big") & 0xF_FFFF_FFFF:
        return data  # so short that the length was known before the header was drained
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        block = np.empty(1 << 16, np.int16)
        pointer = soundfile._ffi.from_buffer("short[]", block)
        samples = soundfile._snd.sf_readf_short(file._file, pointer, len(block))
    assert samples < len(block)
    high_bits = data[21] & 0xF0
    return data[:21] + bytes([high_bits]) + samples.to_bytes(4, "big") + data[26:]


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(list(AudioFormat)), st.integers(0, 20_000), st.lists(st.integers(0, 20_000), max_size=30))
def test_output_is_independent_of_input_cuts(audio_format: AudioFormat, samples: int, cuts: list[int]) -> None:
    pcm = music(samples)
    whole = encode(audio_format, pcm, [])
    in_parts = encode(audio_format, pcm, cuts)
    if audio_format is AudioFormat.OPUS:  # every stream has a random serial number
        assert np.array_equal(decode(audio_format, whole), decode(audio_format, in_parts))
    else:
        assert in_parts == whole


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([AudioFormat.PCM, AudioFormat.WAV, AudioFormat.FLAC]), st.integers(1, 9000), st.integers(0, 9))
def test_lossless_formats_round_trip(audio_format: AudioFormat, samples: int, seed: int) -> None:
    pcm = np.random.default_rng(seed).integers(-32768, 32767, samples, "<i2", endpoint=True).tobytes()
    assert decode(audio_format, encode(audio_format, pcm, [samples // 2])).astype("<i2").tobytes() == pcm


def test_flac_stream_declares_unknown_length() -> None:
    data = encode(AudioFormat.FLAC, music(RATE), [5000])
    assert with_flac_length(data) != data


@pytest.mark.parametrize("audio_format", sorted(LOSSY))
def test_lossy_formats_preserve_the_spectrum(audio_format: AudioFormat) -> None:
    pcm = np.frombuffer(music(RATE), "<i2")
    decoded = decode(audio_format, encode(audio_format, pcm.tobytes(), [100]))
    assert 0 <= len(decoded) - len(pcm) <= RATE // 10
    spectrum = np.abs(np.fft.rfft(decoded[:RATE].astype(float)))
    assert sorted(np.argsort(spectrum)[-2:]) == [300, 1130]


@pytest.mark.parametrize("audio_format", list(AudioFormat))
@pytest.mark.parametrize("samples", [0, 1, 50])
def test_empty_and_shortest_streams_can_be_decoded(audio_format: AudioFormat, samples: int) -> None:
    decoded = decode(audio_format, encode(audio_format, music(samples), []))
    assert len(decoded) >= samples


@pytest.mark.parametrize(
    ("audio_format", "first_ms", "gap_ms"),
    [
        (AudioFormat.PCM, 20, 20),
        (AudioFormat.WAV, 20, 20),
        (AudioFormat.MULAW, 20, 20),
        (AudioFormat.ALAW, 20, 20),
        (AudioFormat.MP3, 20, 60),
        (AudioFormat.OPUS, 120, 120),
        (AudioFormat.FLAC, 60, 60),  # a block is 1152 samples
        (AudioFormat.AAC, 100, 100),  # a frame is 1024 samples, and the encoder looks one ahead
    ],
)
def test_encoders_emit_bytes_while_audio_arrives(audio_format: AudioFormat, first_ms: int, gap_ms: int) -> None:
    """The first bytes beyond the header follow within ``first_ms`` of input, and later bytes within ``gap_ms``.

    Opus writes its header separately, FLAC and MP3 with the first frame.
    """
    rate_hz = rate_of(audio_format)
    encoder = open_encoder(audio_format, rate_hz)
    pcm = music(rate_hz * 2, rate_hz)
    step = rate_hz // 50 * 2
    header = {AudioFormat.OPUS: 900, AudioFormat.FLAC: 100}.get(audio_format, 0)
    total_bytes = 0
    gaps_ms = []
    gap_so_far_ms = 0
    first_output_ms = None
    for start in range(0, len(pcm), step):
        output_bytes = len(encoder.encode(pcm[start : start + step]))
        total_bytes += output_bytes
        gap_so_far_ms += 20
        if output_bytes and total_bytes > header:
            if first_output_ms is None:
                first_output_ms = start // step * 20 + 20
            gaps_ms.append(gap_so_far_ms)
            gap_so_far_ms = 0
    assert first_output_ms is not None
    assert first_output_ms <= first_ms
    assert max(gaps_ms) <= gap_ms


@pytest.mark.parametrize("audio_format", list(G711))
def test_g711_agrees_with_libsndfile(audio_format: AudioFormat) -> None:
    values = np.arange(-32768, 32768).astype("<i2")
    actual = decode(audio_format, encode(audio_format, values.tobytes(), [])).astype(int)
    file = io.BytesIO()
    soundfile.write(file, values, 8_000, format="RAW", subtype=G711[audio_format])
    reference = decode(audio_format, file.getvalue()).astype(int)
    # For a value between two codes both are correct: the error must not exceed the reference's step.
    assert np.all(np.abs(actual - values) <= np.maximum(np.abs(reference - values), np.abs(values) // 32 + 16))
    assert np.mean(actual != reference) < 0.05
    assert np.all(np.diff(actual) >= 0)


def test_wav_stream_declares_unknown_length() -> None:
    data = encode(AudioFormat.WAV, music(100), [])
    assert data[:4] == b"RIFF"
    assert struct.unpack("<I", data[4:8]) == struct.unpack("<I", data[40:44]) == (0xFFFFFFFF,)
    assert len(data) == 44 + 200


def test_wav_file_declares_its_length() -> None:
    with wave.open(io.BytesIO(wav_file(music(100), 16_000))) as file:
        assert file.getparams()[:4] == (1, 2, 16_000, 100)
        assert file.readframes(200) == music(100)
    assert len(wav_header(8_000, 0)) == 44


@pytest.mark.parametrize("audio_format", list(AudioFormat))
def test_half_a_sample_is_rejected(audio_format: AudioFormat) -> None:
    with pytest.raises(ValueError, match="buffer size"):
        open_encoder(audio_format, rate_of(audio_format)).encode(b"\0\0\0")


@pytest.mark.parametrize(
    ("audio_format", "rate_hz"),
    [(AudioFormat.OPUS, 44_100), (AudioFormat.MP3, 10_000), (AudioFormat.MULAW, 24_000), (AudioFormat.ALAW, 16_000)],
)
def test_unsupported_sample_rate_is_rejected(audio_format: AudioFormat, rate_hz: int) -> None:
    with pytest.raises(InvalidRequest, match="use one of"):
        open_encoder(audio_format, rate_hz)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000])
@pytest.mark.parametrize("audio_format", CONTAINERS)
def test_container_declares_its_sample_rate(audio_format: AudioFormat, rate_hz: int) -> None:
    if audio_format is AudioFormat.OPUS and rate_hz == 44_100:
        return  # not supported by the format
    encoder = open_encoder(audio_format, rate_hz)
    data = encoder.encode(music(rate_hz // 5, rate_hz)) + encoder.finish()
    assert soundfile.info(io.BytesIO(data)).samplerate == rate_hz


def test_content_types_match_the_formats() -> None:
    types = {f: open_encoder(f, rate_of(f)).content_type for f in AudioFormat}
    assert types[AudioFormat.PCM] == "audio/pcm;rate=24000;channels=1"
    assert types[AudioFormat.MP3] == "audio/mpeg"
    assert types[AudioFormat.OPUS].startswith("audio/ogg")
    assert len(set(types.values())) == len(types)


def test_unfinished_encoder_is_collected_without_error() -> None:
    for audio_format in AudioFormat:
        open_encoder(audio_format, rate_of(audio_format)).encode(music(1000))
