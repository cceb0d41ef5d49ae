from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.encoders import wav_header
from tts_worker.audio.g711 import encode_alaw, encode_mulaw
from tts_worker.audio.output import OutputFormat, OutputStage
from tts_worker.audio.pcm import to_pcm
from tts_worker.audio.resampler import Resampler
from tts_worker.errors import InvalidRequest, MissingExtra
from tts_worker.types import SAMPLE_RATES_HZ, Encoding


def noise(samples: int) -> bytes:
    return np.random.default_rng(samples).integers(-32768, 32767, samples, "<i2", endpoint=True).tobytes()


def run(stage: OutputStage, pcm: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted(2 * (cut % (len(pcm) // 2 + 1)) for cut in cuts), len(pcm)]
    return b"".join([*(stage.process(pcm[a:b]) for a, b in pairwise(edges)), stage.flush()])


def values(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, "<i2").astype(int)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SAMPLE_RATES_HZ), st.integers(0, 3000), st.lists(st.integers(0, 3000), max_size=8))
def test_cuts_of_the_input_leave_no_seam(rate_hz: int, samples: int, cuts: list[int]) -> None:
    pcm = noise(samples)
    whole = Resampler(24_000, rate_hz)
    expected = values(whole.process(pcm) + whole.flush())
    found = values(run(OutputStage(OutputFormat(rate_hz)), pcm, cuts))
    assert len(found) == len(expected) == -(-samples * rate_hz // 24_000)
    assert np.all(np.abs(found - expected) <= 1)  # one step of 16 bit: the order of a float sum


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(SAMPLE_RATES_HZ), st.integers(0, 10_000))
def test_positions_convert_within_one_sample(rate_hz: int, position: int) -> None:
    stage = OutputStage(OutputFormat(rate_hz))
    converted = stage.from_engine(position)
    assert 0 <= position / 24_000 - converted / rate_hz < 1 / rate_hz
    assert 0 <= converted / rate_hz - stage.to_engine(converted) / 24_000 < 1 / 24_000


@pytest.mark.parametrize(("encoding", "encode"), [(Encoding.MULAW, encode_mulaw), (Encoding.ALAW, encode_alaw)])
def test_telephone_codes_do_not_depend_on_frames(encoding: Encoding, encode: object) -> None:
    stage = OutputStage(OutputFormat(8_000, encoding))
    pcm = noise(800)
    frames = b"".join(stage.encode(pcm[at : at + 320]) for at in range(0, 1600, 320))
    assert callable(encode)
    assert frames == encode(pcm)


def test_wav_has_one_header() -> None:
    stage = OutputStage(OutputFormat(16_000, Encoding.WAV))
    assert stage.encode(b"\1\0" * 320) + stage.encode(b"\2\0") == wav_header(16_000) + b"\1\0" * 320 + b"\2\0"


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 48_000])
def test_opus_packets_decode_to_the_same_audio(rate_hz: int) -> None:
    av = pytest.importorskip("av")
    seconds = np.arange(24_000 // 2) / 24_000
    speech = to_pcm((0.3 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32))
    stage = OutputStage(OutputFormat(rate_hz, Encoding.OPUS))
    pcm = run(stage, speech, [100, 5_000])
    size = 2 * rate_hz // 50
    assert len(pcm) % size == 0  # whole packets
    decoder = av.CodecContext.create("libopus", "r")
    decoder.layout = "mono"
    decoder.sample_rate = 48_000
    packets = [stage.encode(pcm[at : at + size]) for at in range(0, len(pcm), size)]
    decoded = np.concatenate([f.to_ndarray().ravel() for p in packets for f in decoder.decode(av.Packet(p))])
    assert len(decoded) == len(pcm) // 2 * 48_000 // rate_hz
    heard = decoded[312:][: 48_000 // 2].astype(float)  # the codec delays by 6.5 ms
    assert len(heard) == 48_000 // 2, "the end of the speech is lost"
    expected = 0.3 * 32768 * np.sin(2 * np.pi * 440 * np.arange(len(heard)) / 48_000)
    assert np.corrcoef(heard, expected)[0, 1] > 0.98


@pytest.mark.parametrize(
    ("sample_rate", "encoding", "message"),
    [
        (7_999, None, "sample_rate"),
        (96_000, None, "sample_rate"),
        (-1, None, "sample_rate"),
        (16_000, "mulaw", "8000"),
        (24_000, "alaw", "8000"),
        (44_100, "opus", "48000"),
        (None, "mp3", "encoding"),
    ],
)
def test_bad_formats_are_invalid_requests(sample_rate: int | None, encoding: str | None, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        OutputFormat.of(sample_rate, encoding)


def test_default_rate_follows_the_encoding() -> None:
    assert OutputFormat.of(None, None) == OutputFormat(24_000, Encoding.PCM)
    assert OutputFormat.of(None, "alaw") == OutputFormat(8_000, Encoding.ALAW)
    assert OutputFormat.of(None, "opus") == OutputFormat(24_000, Encoding.OPUS)


def test_opus_without_its_library_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[media\]"):
        OutputStage(OutputFormat(24_000, Encoding.OPUS))


class Delaying:
    """Holds back 20 ms and adds one to each sample."""

    def __init__(self) -> None:
        self._held = b""

    def process(self, pcm: bytes) -> bytes:
        pcm = self._held + pcm
        ready = max(0, len(pcm) - 960)
        self._held = pcm[ready:]
        return self._mark(pcm[:ready])

    def flush(self) -> bytes:
        return self._mark(self._held)

    def _mark(self, pcm: bytes) -> bytes:
        return (np.frombuffer(pcm, "<i2") + np.int16(1)).astype("<i2").tobytes()


@settings(deadline=None, max_examples=30)
@given(st.sampled_from((8_000, 24_000)), st.integers(0, 3000), st.lists(st.integers(0, 3000), max_size=8))
def test_marker_sees_the_audio_before_it_is_resampled(rate_hz: int, samples: int, cuts: list[int]) -> None:
    pcm = noise(samples)
    marked = (np.frombuffer(pcm, "<i2") + np.int16(1)).astype("<i2").tobytes()
    resampler = Resampler(24_000, rate_hz)
    expected = values(resampler.process(marked) + resampler.flush())
    found = values(run(OutputStage(OutputFormat(rate_hz), marker=Delaying()), pcm, cuts))
    assert len(found) == len(expected)
    assert np.all(np.abs(found - expected) <= 1)
