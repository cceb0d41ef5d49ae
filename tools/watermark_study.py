"""Study the watermark: detection rates after attacks, false alarms, quality and cost, as one JSON object.

    python -m tools.watermark_study --cache DIR [--recordings DIR ...] [--minutes 8] [--quality [VOICE ...]]

The speech is that of all voices that are installed: those of the CPU engine and of model directories of CosyVoice, such
as ``pip install packages/tts-worker-voices packages/tts-worker-voice-nano`` installs. ``--recordings`` names folders of
unmarked audio, such as the human prompts of Debian's packages ``asterisk-core-sounds-*-wav``; they count for false
alarms only. MP3 and Opus need PyAV (extra ``media``), ``--quality`` the extra ``quality``.

``--cache`` keeps speech and the figures that are done, so that a run that was ended continues. Figures are made anew
when the watermark or this program has changed; delete the folder when a voice has.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from time import process_time, thread_time
from typing import Any, ParamSpec

import numpy as np
import soxr
from tests.conftest import serving
from tests.quality.judge import Judge, missing_reason
from tests.quality.sentences import SENTENCES
from websockets.asyncio.client import connect

from tts_worker.atomic_files import write_atomically
from tts_worker.audio.decode import read_recording
from tts_worker.audio.encoders import WavData, wav_header
from tts_worker.audio.g711 import encode_alaw, encode_mulaw
from tts_worker.audio.pcm import Floats, to_float, to_pcm
from tts_worker.engine.factory import EngineFactory
from tts_worker.engine.shell import EngineShell
from tts_worker.errors import InvalidRequest
from tts_worker.features import marking
from tts_worker.features.marking import detector
from tts_worker.features.marking.pattern import known_signs
from tts_worker.features.marking.watermark import DEPTHS, Watermark, watermark_gains
from tts_worker.settings import load_settings
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Segment, SynthesisParams, UtteranceKey
from tts_worker.voices.installed import installed_voices

_ID = 0x5EED1234
_HELD_OUT = Path(__file__).parent / "train" / "held_out.txt"
_CASES = Path(__file__).parents[1] / "tests" / "data" / "reading" / "english_cases.tsv"
_SUFFIXES = (".wav", ".mp3", ".ogg", ".flac")
_EXCERPT_S, _LONG_S = 5, 20
_ATTACKED_S = 80
"""Speech of each voice that is attacked."""
_PART_S = 60
_OTHER_PATTERNS = 1
"""Patterns besides the true one with which unmarked audio is scored: more windows than there is audio for."""
_CALLS = 24
_CHUNKS_MS = (20, 40, 100, 250, 500)
_TIMED_CHUNKS = 150

P = ParamSpec("P")
Attack = Callable[[Floats], tuple[Floats, int]]
"""Returns the audio and its rate, from audio at 24 kHz."""


def main() -> None:
    """Print the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", required=True, type=Path, metavar="DIR", help="folder of speech and figures")
    parser.add_argument("--recordings", nargs="*", default=(), type=Path, metavar="DIR", help="unmarked audio")
    parser.add_argument("--minutes", type=float, default=8, help="unmarked speech of each voice (default 8)")
    parser.add_argument(
        "--quality", nargs="*", metavar="VOICE", help="score with the recognizer and the quality score (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="as always: print one JSON object, in a line")
    args = parser.parse_args()
    if args.quality is not None and (reason := missing_reason()):
        parser.error(reason)
    for folder in args.recordings:
        if next(recordings(folder), None) is None:
            parser.error(f"--recordings {folder}: there is no audio")
    figures = Figures(args.cache)
    result: dict[str, Any] = {
        "depths": [round(float(depth), 3) for depth in DEPTHS[[0, -1]]],
        "threshold": detector.THRESHOLD,
        "cost": figures.get("cost", cost),
    }
    voices = find_voices(figures, args.cache)
    unmarked = {f"voice {voice.name}": minutes_of(voice, args.minutes) for voice in voices}
    unmarked |= {folder.name: recordings(folder) for folder in args.recordings}
    result["unmarked"] = {
        name: figures.get(f"unmarked, {name}, {args.minutes:g}", false_alarms, audio)
        for name, audio in unmarked.items()
    }
    studies: dict[str, tuple[Callable[[Voice], Any], list[Voice]]] = {
        "snr_db": (band_snr, voices),
        "attacks": (rates_of_attacks, voices),
    }
    if args.quality is not None:
        judged = [voice for voice in voices if voice.name in args.quality or not args.quality]
        studies["quality"] = quality, judged
    for name, (study, of_voices) in studies.items():
        result[name] = {voice.name: figures.get(f"{name}, {voice.name}", study, voice) for voice in of_voices}
    print(json.dumps(result))


class Figures:
    """Figures that are computed once for each version of the watermark and of this program.

    Args:
        folder: Where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        sources = sorted([*Path(marking.__file__).parent.glob("*.py"), Path(__file__)])
        version = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
        self._folder = folder / f"figures-{version}"
        self._folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, compute: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the figures of this name; compute them if there are none."""
        file = self._folder / f"{name}.json"
        if not file.exists():
            write_atomically(file, json.dumps(compute(*args, **kwargs)).encode())
        return json.loads(file.read_text("utf-8"))


# -- speech -----------------------------------------------------------------------------------------------------------


class Speaker:
    """Speaks texts with one voice and sums up their length and cost."""

    def __init__(self, engine: EngineShell[Any], voice: str) -> None:
        self._engine = engine
        self._params = SynthesisParams(voice)
        self.audio_s = self.processor_s = 0.0

    def __call__(self, text: str) -> bytes:
        processor_s = process_time()
        pcm = self._engine.speak(UtteranceKey("quality", 1), self._params, [Segment.whole(text)])
        self.processor_s += process_time() - processor_s
        self.audio_s += len(pcm) / BYTES_PER_SAMPLE / SAMPLE_RATE_HZ
        return pcm


class Voice:
    """A voice whose speech is kept in a folder.

    Args:
        name: Its name.
        start: Returns its engine; called when there is something new to speak.
        folder: Where its speech is kept.
    """

    def __init__(self, name: str, start: Callable[[], EngineShell[Any]], folder: Path) -> None:
        self.name = name
        self._start = start
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def speak(self, text: str) -> bytes:
        """Return the speech, s16le at 24 kHz."""
        file = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.pcm"
        if not file.exists():
            write_atomically(file, Speaker(self._start(), self.name)(text))
        return file.read_bytes()

    def clips(self) -> list[bytes]:
        """Return the speech that is attacked; that of ``SENTENCES`` first."""
        return [self.speak(text) for text in (*SENTENCES, *_HELD_OUT.read_text("utf-8").split("\n")[:-1])]


def find_voices(figures: Figures, folder: Path) -> list[Voice]:
    """Return all installed voices."""
    engines = {"hibari": {"kind": "hibari"}}
    engines |= {name: {"kind": "cosyvoice", "bundle": name} for name in installed_voices()}
    found = []
    for engine, settings in engines.items():
        start = cache(partial(start_engine, engine, settings))
        for name in figures.get(f"voices of {engine}", names_of, start):
            found.append(Voice(name, start, folder / "speech" / f"{engine}-{name}"))
    return found


def names_of(start: Callable[[], EngineShell[Any]]) -> list[str]:
    """Return the names of the voices of an engine."""
    return [*start().info.voices]


def start_engine(name: str, engine_settings: Mapping[str, str]) -> EngineShell[Any]:
    """Start an engine."""
    settings = load_settings(None, {"engines": {name: engine_settings}}, replaced=("engines",))
    engine = EngineFactory(settings.engines[name])()
    assert isinstance(engine, EngineShell)
    engine.warm_up()
    return engine


def minutes_of(voice: Voice, minutes: float) -> Iterator[Floats]:
    """Yield speech of other texts, in parts of a minute, until there is enough."""
    lines = _CASES.read_text("utf-8").split("\n")
    left_s = 60 * minutes
    clips: list[bytes] = []
    for text in dict.fromkeys(line.split("\t")[1] for line in lines if "\t" in line):
        clips.append(voice.speak(text))
        part_s = seconds_of(clips)
        if part_s >= min(_PART_S, left_s):
            yield to_float(b"".join(clips))
            left_s -= part_s
            clips = []
        if left_s <= detector.WINDOW_S:
            return
    if seconds_of(clips) > detector.WINDOW_S:
        yield to_float(b"".join(clips))


def seconds_of(clips: Sequence[bytes]) -> float:
    """Return the duration of s16le at 24 kHz."""
    return sum(map(len, clips)) / BYTES_PER_SAMPLE / SAMPLE_RATE_HZ


def mark(pcm: bytes, chunk_ms: int = 250) -> bytes:
    """Mark a whole utterance, in chunks as an engine emits them."""
    marker = Watermark(watermark_gains(_ID))
    size = BYTES_PER_SAMPLE * SAMPLE_RATE_HZ * chunk_ms // 1_000
    return b"".join(marker.process(pcm[at : at + size]) for at in range(0, len(pcm), size)) + marker.flush()


# -- cost -------------------------------------------------------------------------------------------------------------


def cost() -> dict[str, Any]:
    """Return the cost of marking in calls, and by size of the chunks; and that of detecting."""
    calls = asyncio.run(cost_of_calls())
    chunks = cost_of_chunks()
    unmarked = calls["call_ms_per_s"] - calls["mark_ms_per_s"]
    shares = {size: round(ms / unmarked, 4) for size, ms in chunks["mark_ms_per_s_by_chunk_ms"].items()}
    return {**calls, **chunks, "mark_share_of_unmarked_call_by_chunk_ms": shares}


async def cost_of_calls() -> dict[str, Any]:
    """Return the processor time of calls of the CPU voice, and the part that marking has in it.

    A server speaks paced calls whose text arrives word by word; the clients are another process. The first calls are
    not measured.
    """
    sections = {"marking": {"marker": "watermark"}, "engines": {"hibari": {"kind": "hibari"}}, "models": {}}
    loop = asyncio.get_running_loop()
    with timed_marks() as marks, ProcessPoolExecutor(1, get_context("spawn")) as clients:
        async with serving(**sections) as address:
            await loop.run_in_executor(clients, listen, address, 1)
            marks.clear()
            begin_s = process_time()
            await loop.run_in_executor(clients, listen, address, _CALLS)
            calls_s = process_time() - begin_s
    chunks_ms = np.array([1_000 * seconds for seconds, _ in marks])
    audio_s, marks_s = np.sum(marks, axis=0)
    return {
        "call_ms_per_s": round(1e3 * calls_s / audio_s, 3),
        "mark_ms_per_s": round(1e3 * marks_s / audio_s, 3),
        "mark_share_of_unmarked_call": round(marks_s / (calls_s - marks_s), 4),
        "chunks": {
            "mean_ms": round(float(chunks_ms.mean())),
            "below_100_ms": round(float((chunks_ms < 100).mean()), 2),
            "percentiles_10_50_90_ms": [round(float(each)) for each in np.percentile(chunks_ms, (10, 50, 90))],
        },
    }


@contextmanager
def timed_marks() -> Iterator[list[tuple[float, float]]]:
    """Yield a list to which each chunk that is marked adds its seconds of audio and of processor time."""
    marks: list[tuple[float, float]] = []
    process = Watermark.process

    def timed(self: Watermark, pcm: bytes) -> bytes:
        begin_s = thread_time()
        out = process(self, pcm)
        marks.append((seconds_of([pcm]), thread_time() - begin_s))
        return out

    Watermark.process = timed  # type: ignore[method-assign]
    try:
        yield marks
    finally:
        Watermark.process = process  # type: ignore[method-assign]


def listen(address: str, calls: int) -> None:
    """Have a worker speak in calls at the same time, and receive them to their end."""

    async def call() -> None:
        async with connect(f"ws://{address}/v1/stream", compression=None) as socket:
            for word in " ".join(SENTENCES[-4:]).split():
                await socket.send(json.dumps({"type": "text", "text": f"{word} "}))
            await socket.send(json.dumps({"type": "text", "text": "", "end": True}))
            async for message in socket:
                if isinstance(message, str) and json.loads(message)["type"] == "done":
                    return

    async def all_calls() -> None:
        await asyncio.gather(*(call() for _ in range(calls)))

    asyncio.run(all_calls())


def cost_of_chunks() -> dict[str, Any]:
    """Return the processor time of the engine alone, of marking in chunks of one size, and of detecting.

    Before each chunk the engine speaks a word, since in a call, too, it replaces what marking has in the caches.
    """
    speak = Speaker(start_engine("hibari", {"kind": "hibari"}), "heart")
    pcm = b"".join(speak(text) for text in SENTENCES)
    engine_s, seconds = speak.processor_s, seconds_of([pcm])
    marks_ms = {}
    for chunk_ms in _CHUNKS_MS:
        size = BYTES_PER_SAMPLE * SAMPLE_RATE_HZ * chunk_ms // 1_000
        marker = Watermark(watermark_gains(_ID))
        marks_s = []
        for at in range(0, min(len(pcm) - size, _TIMED_CHUNKS * size), size):
            speak("Yes.")
            begin_s = thread_time()
            marker.process(pcm[at : at + size])
            marks_s.append(thread_time() - begin_s)
        marks_ms[str(chunk_ms)] = round(1e6 * float(np.median(marks_s)) / chunk_ms, 3)
    begin_s = process_time()
    detector.detect(to_float(pcm), SAMPLE_RATE_HZ)
    return {
        "engine_ms_per_s": round(1e3 * engine_s / seconds, 3),
        "mark_ms_per_s_by_chunk_ms": marks_ms,
        "detect_ms_per_s": round(1e3 * (process_time() - begin_s) / seconds, 3),
    }


def band_snr(voice: Voice) -> dict[str, float]:
    """Return the ratio of the speech to the change in it, in thirds of the marked range and in all, in dB."""
    pcm = b"".join(voice.clips())
    original, marked = to_float(pcm), to_float(mark(pcm))
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


def rates_of_attacks(voice: Voice) -> dict[str, dict[str, float]]:
    """Return the rates of each attack."""
    marked = to_float(mark(b"".join(voice.clips())))[: _ATTACKED_S * SAMPLE_RATE_HZ]
    return {name: rates(attack, marked) for name, attack in attacks().items()}


def rates(attack: Attack, marked: Floats) -> dict[str, float]:
    """Return how often the watermark is found in excerpts of 5 s that were attacked, and the id in those of 20 s."""
    found = [detector.detect(*attack(part)) for part in excerpts(marked, _EXCERPT_S)]
    long = [detector.detect(*attack(part)) for part in excerpts(marked, _LONG_S)]
    return {
        "excerpts_5_s": len(found),
        "excerpts_20_s": len(long),
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


def quality(voice: Voice) -> dict[str, float]:
    """Score speech before and after it is marked."""
    clips = voice.clips()[: len(SENTENCES)]
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
