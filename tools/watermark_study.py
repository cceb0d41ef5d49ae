"""Study the watermark: detection rates after attacks, false alarms, quality and cost, as one JSON object.

    python -m tools.watermark_study [--recordings DIR ...] [--quality] > study.json

The speech is that of all voices of the CPU engine. ``--recordings`` names folders of unmarked audio, such as the human
prompts of Debian's packages ``asterisk-core-sounds-*-wav``; they count for false alarms only. MP3 and Opus need PyAV
(extra ``media``), ``--quality`` the extra ``quality``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import soxr
from tests.quality.judge import Judge, missing_reason
from tests.quality.sentences import SENTENCES

from tts_worker.audio.decode import read_recording
from tts_worker.audio.encoders import WavData, wav_header
from tts_worker.audio.g711 import encode_alaw, encode_mulaw
from tts_worker.audio.pcm import Floats, to_float, to_pcm
from tts_worker.engine.factory import EngineFactory
from tts_worker.engine.shell import EngineShell
from tts_worker.errors import InvalidRequest
from tts_worker.features.marking import detector
from tts_worker.features.marking.pattern import known_signs
from tts_worker.features.marking.watermark import DEPTHS, Watermark, watermark_gains
from tts_worker.settings import HibariEngineSettings
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Segment, SynthesisParams, UtteranceKey

_ID = 0x5EED1234
_HELD_OUT = Path(__file__).parent / "train" / "held_out.txt"
_CASES = Path(__file__).parents[1] / "tests" / "data" / "reading" / "english_cases.tsv"
_SUFFIXES = (".wav", ".mp3", ".ogg", ".flac")
_EXCERPT_S, _LONG_S = 5, 20
_CASES_PER_PART = 25
_OTHER_PATTERNS = 1
"""Patterns besides the true one with which unmarked audio is scored: more windows than there is audio for."""
_JUDGED = len(SENTENCES)

Attack = Callable[[Floats], tuple[Floats, int]]
"""Returns the audio and its rate, from audio at 24 kHz."""


def main() -> None:
    """Print the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", nargs="*", default=(), type=Path, metavar="DIR", help="unmarked audio")
    parser.add_argument("--quality", action="store_true", help="score with the recognizer and the quality score")
    parser.add_argument("--json", action="store_true", help="as always: print one JSON object, in a line")
    args = parser.parse_args()
    if args.quality and (reason := missing_reason()):
        parser.error(reason)
    voices: dict[str, list[bytes]] = {}
    unmarked: dict[str, Iterator[Floats]] = {}
    engine_s = audio_s = 0.0
    for voice, speak in speakers():
        voices[voice] = [speak(text) for text in texts()]
        unmarked[f"voice {voice}"] = (to_float(b"".join(map(speak, part))) for part in parts_of_an_hour())
        engine_s, audio_s = engine_s + speak.processor_s, audio_s + speak.audio_s
    result: dict[str, Any] = {
        "depths": [round(float(depth), 3) for depth in DEPTHS[[0, -1]]],
        "threshold": detector.THRESHOLD,
        "speech_s": round(audio_s),
    }
    result["cost"] = cost([clip for clips in voices.values() for clip in clips], engine_s / audio_s)
    originals = {voice: to_float(b"".join(clips)) for voice, clips in voices.items()}
    marked = {voice: to_float(mark(b"".join(clips))) for voice, clips in voices.items()}
    result["snr_db"] = {voice: band_snr(originals[voice], marked[voice]) for voice in voices}
    result["attacks"] = {name: rates(attack, [*marked.values()]) for name, attack in attacks().items()}
    unmarked |= {folder.name: recordings(folder) for folder in args.recordings}
    result["unmarked"] = {name: false_alarms(audio) for name, audio in unmarked.items()}
    if args.quality:
        result["quality"] = {voice: quality(clips[:_JUDGED]) for voice, clips in voices.items()}
    print(json.dumps(result))


def texts() -> list[str]:
    """Return what the voices say."""
    return [*SENTENCES, *_HELD_OUT.read_text("utf-8").split("\n")[:-1]]


def parts_of_an_hour() -> Iterator[list[str]]:
    """Yield texts of about an hour in all, in parts of about a minute."""
    lines = _CASES.read_text("utf-8").split("\n")
    cases = list(dict.fromkeys(line.split("\t")[1] for line in lines if "\t" in line))
    for at in range(0, len(cases), _CASES_PER_PART):
        yield cases[at : at + _CASES_PER_PART]


class Speaker:
    """Speaks texts with one voice and sums up their length and cost."""

    def __init__(self, engine: EngineShell[Any], voice: str) -> None:
        self._engine = engine
        self._params = SynthesisParams(voice)
        self.audio_s = self.processor_s = 0.0

    def __call__(self, text: str) -> bytes:
        began_s = process_time()
        pcm = self._engine.speak(UtteranceKey("study", 1), self._params, [Segment.whole(text)])
        self.processor_s += process_time() - began_s
        self.audio_s += len(pcm) / BYTES_PER_SAMPLE / SAMPLE_RATE_HZ
        return pcm


def speakers() -> Iterator[tuple[str, Speaker]]:
    """Yield the voices of the CPU engine."""
    engine = EngineFactory(HibariEngineSettings())()
    assert isinstance(engine, EngineShell)
    engine.warm_up()
    for voice in engine.info.voices:
        yield voice, Speaker(engine, voice)


def mark(pcm: bytes, chunk_s: float = 0.25) -> bytes:
    """Mark a whole utterance, in chunks as an engine emits them."""
    marker = Watermark(watermark_gains(_ID))
    size = 2 * int(SAMPLE_RATE_HZ * chunk_s)
    return b"".join(marker.process(pcm[at : at + size]) for at in range(0, len(pcm), size)) + marker.flush()


def cost(clips: Sequence[bytes], engine_s: float) -> dict[str, float]:
    """Return the processor time of marking and detecting, per second of audio, beside that of the engine."""
    whole = b"".join(clips)
    seconds = len(whole) / 2 / SAMPLE_RATE_HZ
    begin = process_time()
    audio = to_float(mark(whole))
    marked = process_time()
    detector.detect(audio[: 60 * SAMPLE_RATE_HZ], SAMPLE_RATE_HZ)
    return {
        "engine_ms_per_s": round(1e3 * engine_s, 3),
        "mark_ms_per_s": round(1e3 * (marked - begin) / seconds, 3),
        "detect_ms_per_s": round(1e3 * (process_time() - marked) / min(seconds, 60), 3),
    }


def band_snr(original: Floats, marked: Floats) -> dict[str, float]:
    """Return the ratio of the speech to the change in it, in thirds of the marked range and in all, in dB."""
    powers = [np.square(np.abs(np.fft.rfft(audio))) for audio in (original, marked - original)]
    hz = np.fft.rfftfreq(len(original), 1 / SAMPLE_RATE_HZ)
    bands = {"300-1300": (300, 1_300), "1300-2300": (1_300, 2_300), "2300-3300": (2_300, 3_300), "all": (0, 12_000)}
    inside = {name: (hz >= low) & (hz < high) for name, (low, high) in bands.items()}
    return {
        name: round(float(10 * np.log10(powers[0][at].sum() / powers[1][at].sum())), 1) for name, at in inside.items()
    }


# -- attacks ----------------------------------------------------------------------------------------------------------


def attacks() -> Mapping[str, Attack]:
    """Return the attacks that this installation can make, by name."""
    made: dict[str, Attack] = {
        "none": lambda audio: (audio, SAMPLE_RATE_HZ),
        "resampled to 16 kHz": lambda audio: (_resample(audio, 16_000), 16_000),
        "resampled to 8 kHz": lambda audio: (_resample(audio, 8_000), 8_000),
        "G.711 mu-law": lambda audio: (_g711(audio, encode_mulaw, WavData.MULAW), 8_000),
        "G.711 A-law": lambda audio: (_g711(audio, encode_alaw, WavData.ALAW), 8_000),
        "white noise at 20 dB": lambda audio: (_noise(audio, 20), SAMPLE_RATE_HZ),
        "white noise at 10 dB": lambda audio: (_noise(audio, 10), SAMPLE_RATE_HZ),
        "clipped 12 dB below its peak": lambda audio: (_clip(audio, 12), SAMPLE_RATE_HZ),
        "cut: 0.7 s of the middle missing": lambda audio: (_cut(audio), SAMPLE_RATE_HZ),
        "speed +2 %": lambda audio: (_resample(audio, round(SAMPLE_RATE_HZ / 1.02)), SAMPLE_RATE_HZ),
        "speed -2 %": lambda audio: (_resample(audio, round(SAMPLE_RATE_HZ / 0.98)), SAMPLE_RATE_HZ),
        "speed +5 %": lambda audio: (_resample(audio, round(SAMPLE_RATE_HZ / 1.05)), SAMPLE_RATE_HZ),
        "room (0.3 s of reverberation)": lambda audio: (_reverberate(audio), SAMPLE_RATE_HZ),
        "mu-law, then noise at 20 dB": lambda a: (_noise(_g711(a, encode_mulaw, WavData.MULAW), 20), 8_000),
    }
    try:
        import av
    except ImportError:
        return made
    if "libmp3lame" in av.codecs_available:
        made["MP3 64 kbit/s"] = lambda audio: (_coded(audio, "mp3", "libmp3lame", 24_000, 64_000), 24_000)
        made["MP3 32 kbit/s"] = lambda audio: (_coded(audio, "mp3", "libmp3lame", 24_000, 32_000), 24_000)
    if "libopus" in av.codecs_available:
        made["Opus 16 kbit/s"] = lambda audio: (_coded(audio, "ogg", "libopus", 24_000, 16_000), 24_000)
        made["Opus 8 kbit/s"] = lambda audio: (_coded(audio, "ogg", "libopus", 24_000, 8_000), 24_000)
    return made


def _resample(audio: Floats, rate_hz: int) -> Floats:
    resampled: Floats = soxr.resample(audio, SAMPLE_RATE_HZ, rate_hz)
    return resampled


def _g711(audio: Floats, encode: Callable[[bytes], bytes], kind: WavData) -> Floats:
    encoded = encode(to_pcm(_resample(audio, 8_000)))
    return read_recording(wav_header(8_000, len(encoded), kind) + encoded).samples


def _noise(audio: Floats, snr_db: float) -> Floats:
    level = np.sqrt(np.mean(np.square(audio))) * 10 ** (-snr_db / 20)
    return audio + np.random.default_rng(1).normal(0, level, len(audio)).astype(np.float32)


def _clip(audio: Floats, below_db: float) -> Floats:
    limit = np.abs(audio).max() * 10 ** (-below_db / 20)
    return np.clip(audio, -limit, limit)


def _cut(audio: Floats) -> Floats:
    half = len(audio) // 2
    return np.concatenate((audio[:half], audio[half + round(0.7 * SAMPLE_RATE_HZ) :]))


def _reverberate(audio: Floats) -> Floats:
    taps = np.arange(round(0.3 * SAMPLE_RATE_HZ))
    tail = np.random.default_rng(2).normal(0, 1, len(taps)) * 10 ** (-3 * taps / len(taps)) * 0.03
    tail[0] = 1.0
    size = len(audio) + len(taps)
    wet = np.fft.irfft(np.fft.rfft(audio, size) * np.fft.rfft(tail, size), size)
    return wet[: len(audio)].astype(np.float32)


def _coded(audio: Floats, container: str, codec: str, rate_hz: int, bit_rate: int) -> Floats:
    import io

    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate_hz, layout="mono")
        stream.bit_rate = bit_rate
        resampler = av.AudioResampler(format=stream.codec_context.format or "s16p", layout="mono", rate=rate_hz)
        frame = av.AudioFrame.from_ndarray(np.frombuffer(to_pcm(audio), np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = SAMPLE_RATE_HZ
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    file.seek(0)
    decoded: list[Floats] = []
    with av.open(file) as source:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate_hz)
        for packet in (*source.decode(audio=0), None):
            decoded += [part.to_ndarray()[0] for part in resampler.resample(packet)]
    return np.concatenate(decoded).astype(np.float32)


# -- rates ------------------------------------------------------------------------------------------------------------


def rates(attack: Attack, voices: Sequence[Floats]) -> dict[str, float]:
    """Return how often the watermark is found in excerpts of 5 s that were attacked, and the id in those of 20 s."""
    short = [attack(part) for audio in voices for part in excerpts(audio, _EXCERPT_S)]
    found = [detector.detect(*part) for part in short]
    long = [detector.detect(*attack(part)) for audio in voices for part in excerpts(audio, _LONG_S)]
    return {
        "detected_5_s": round(float(np.mean([each.marked for each in found])), 3),
        "median_score": round(float(np.median([each.score for each in found])), 1),
        "detected_20_s": round(float(np.mean([each.marked for each in long])), 3),
        "id_20_s": round(float(np.mean([each.deployment_id == _ID for each in long])), 3),
        "wrong_id_20_s": round(float(np.mean([each.deployment_id not in (_ID, None) for each in long])), 3),
    }


def excerpts(audio: Floats, seconds: int) -> list[Floats]:
    """Cut audio into excerpts that begin anywhere in the pattern."""
    size = seconds * SAMPLE_RATE_HZ
    return [audio[at : at + size] for at in range(0, len(audio) - size + 1, size)]


def recordings(folder: Path) -> Iterator[Floats]:
    """Yield the audio of the files of a folder at 24 kHz, joined to parts of a minute or more."""
    parts: list[Floats] = []
    for path in sorted(each for each in folder.rglob("*") if each.suffix in _SUFFIXES and "silence" not in str(each)):
        try:
            recording = read_recording(path)
        except InvalidRequest:  # no samples
            continue
        parts.append(soxr.resample(recording.samples, recording.rate_hz, SAMPLE_RATE_HZ))
        if sum(map(len, parts)) > 60 * SAMPLE_RATE_HZ:
            yield np.concatenate(parts)
            parts = []
    if sum(map(len, parts)) > 5 * SAMPLE_RATE_HZ:
        yield np.concatenate(parts)


def false_alarms(unmarked: Iterator[Floats]) -> dict[str, float]:
    """Score unmarked audio with the watermark's pattern and with others that are as good.

    ``log10_rate_at_threshold`` extrapolates: that the best of many scores exceeds t has a probability proportional to
    that of a normal variable, with the factor that the highest hundredth of the scores has.
    """
    others = [np.random.default_rng(seed).permuted(known_signs()) for seed in range(_OTHER_PATTERNS)]
    own: list[float] = []
    other: list[float] = []
    seconds = 0.0
    for audio in unmarked:
        seconds += len(audio) / SAMPLE_RATE_HZ
        at_8_khz = _resample(audio, 8_000)
        own += [window.score for window in detector.score_windows(at_8_khz)]
        for pattern in others:
            other += [window.score for window in detector.score_windows(at_8_khz, pattern)]
    scores = np.sort([*own, *other])
    tail = float(scores[-max(1, len(scores) // 100)])
    factor = max(1, len(scores) // 100) / len(scores) / math.erfc(tail / math.sqrt(2))
    rate = factor * math.erfc(detector.THRESHOLD / math.sqrt(2))
    return {
        "hours": round(seconds / 3600, 2),
        "windows": len(own),
        "highest_score": round(max(own), 2),
        "windows_of_other_patterns": len(other),
        "highest_score_of_other_patterns": round(max(other), 2),
        "false_alarms": int((scores >= detector.THRESHOLD).sum()),
        "log10_rate_at_threshold": round(math.log10(rate), 1),
    }


def quality(clips: Sequence[bytes]) -> dict[str, float]:
    """Score speech before and after it is marked."""
    judge = Judge()
    result: dict[str, float] = {}
    differences = []
    for name, spoken in (("plain", clips), ("marked", [mark(clip) for clip in clips])):
        scores = [judge.mos(clip) for clip in spoken]
        result[f"word_error_rate_{name}"] = round(judge.wer(SENTENCES, [judge.transcribe(clip) for clip in spoken]), 4)
        result[f"mos_{name}"] = round(float(np.mean(scores)), 3)
        differences.append(np.array(scores))
    change = differences[1] - differences[0]
    result["mos_change"] = round(float(change.mean()), 3)
    result["mos_change_standard_error"] = round(float(change.std(ddof=1) / math.sqrt(len(change))), 3)
    return result


if __name__ == "__main__":
    main()
