"""``tts-worker bench engine``: the CosyVoice engine by stage, with forced tokens, so that random weights will do.

Needs torch, numpy and tokenizers only. The language model runs and draws as ever; what it drew is overwritten with
tokens made up beforehand, so that every run has the length that was asked for. Times are of the wall; the first sound
is counted from the first command of an utterance to the event that carries it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch

from tts_worker.benchmarks.stats import Figure, percentile, rss_mb, show
from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.streaming.engine import CosyVoiceEngine
from tts_worker.engine.streaming.load import LoadOptions, load_engine, usual_threads
from tts_worker.engine.streaming.utterance import plain_segment
from tts_worker.errors import InvalidRequest, SynthesisFailed
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Audio,
    Boundary,
    Cancel,
    Credit,
    Done,
    EndText,
    Failed,
    Open,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
)
from tts_worker.voicepack.voice_file import Voice

TOKEN_RATE_HZ = 25
TEXT = "The quick brown fox jumps over the lazy dog, and nobody asks why."
WINDOW_SAMPLES = 3 * SAMPLE_RATE_HZ // 2  # how far ahead of its listener a session may be
ONE = (plain_segment(TEXT),)
SENTENCE_S = 6
VOICE = "benchmark"
MOST_S = 100  # of sound, that the language model's memory holds in one piece


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="model directory; random weights do")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of sound, for the real-time factor (default 20)")
    parser.add_argument("--growth-seconds", type=float, default=60.0, help="of sound, at least 12 (default 60)")
    parser.add_argument("--prompt-tokens", type=int, default=125, help="of the made-up voice (default 125: 5 s)")
    parser.add_argument("--sessions", type=int, default=1, help="that listen in real time, at once (default 1)")
    parser.add_argument("--session-seconds", type=float, default=6.0, help="of sound for each of them (default 6)")
    parser.add_argument("--cancels", type=int, default=0, help="calls that are cancelled at random points (default 0)")
    parser.add_argument("--repeats", type=int, default=5, help="medians and minima are told (default 5)")
    parser.add_argument("--first-tokens", type=int, default=8, help="before the first boundary (default 8)")
    parser.add_argument("--stride-chunks", type=int, help="chunks at a time, once under way (default: by device)")
    parser.add_argument("--memory-gb", type=float, help="for what is being spoken (default: what suits the device)")
    parser.add_argument("--threads", type=int, help="of the CPU")
    parser.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="the flow beside tokens and vocoder, on a CPU (default: with four cores)",
    )
    parser.add_argument("--half", action="store_true", default=None, help="bfloat16, also on a CPU")
    parser.add_argument("--no-graphs", action="store_true", help="without CUDA graphs")
    parser.add_argument("--smooth-start", action="store_true", help="let a first chunk wait where a hole would follow")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    lengths_s = (args.seconds, args.growth_seconds, args.session_seconds)
    if not all(1.0 <= length_s <= MOST_S for length_s in lengths_s):
        raise InvalidRequest(f"--seconds, --growth-seconds and --session-seconds must be 1 to {MOST_S}")
    if args.growth_seconds < 2 * SENTENCE_S:
        raise InvalidRequest(f"--growth-seconds must be at least {2 * SENTENCE_S}: two sentences, to compare them")
    if args.repeats < 1 or args.sessions < 1 or args.prompt_tokens < 0:
        raise InvalidRequest("--repeats and --sessions must be at least 1, --prompt-tokens at least 0")
    options = LoadOptions(
        args.bundle,
        device=args.device,
        half=args.half,
        threads=args.threads,
        overlap=args.overlap,
        graphs=not args.no_graphs,
        max_utterances=max(4, args.sessions),
        first_tokens=args.first_tokens,
        stride_chunks=args.stride_chunks,
        max_passage_s=int(max(lengths_s)) + 2,
        memory_gb=args.memory_gb,
        smooth_start=args.smooth_start,
    )
    bench = Bench(options, args.prompt_tokens)
    figures = bench.describe()
    figures |= bench.first_sound(args.repeats)
    figures |= bench.speed(args.seconds, args.repeats)
    figures |= bench.growth(args.growth_seconds, args.repeats)
    figures |= bench.unbroken(args.seconds, args.repeats)
    if args.cancels > 0:
        figures |= bench.cancels(args.cancels)
    if args.sessions > 1:
        figures |= bench.sessions(args.sessions, args.session_seconds)
    show(figures, args.json)
    return 0


def made_up_voice(bundle: Bundle, tokens: int, seed: int = 0) -> Voice:
    """A voice with a prompt of so many speech tokens and a transcript."""
    config = bundle.config
    rng = np.random.default_rng(seed)
    return Voice(
        family=config.family,
        prompt_text="",
        prompt_text_ids=rng.integers(0, 200, max(4, tokens // 6)).astype(np.int32),
        tokens=forced_tokens(tokens, seed + 1),
        mel=rng.standard_normal((2 * tokens, config.mel.bins)).astype(np.float32),
        embedding=rng.standard_normal(config.flow.spk_embed).astype(np.float32),
        seconds=tokens / TOKEN_RATE_HZ,
    )


def forced_tokens(count: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Speech ids to say, none of them silent (those may be dropped)."""
    return np.random.default_rng(seed).integers(2500, 6500, count).astype(np.int32)


@dataclass(frozen=True)
class Spoken:
    """One utterance: when its first sound came and how much that was, how long each chunk sounds and what it took, and
    the sound."""

    first_s: float
    first_samples: int
    first_tokens: int
    chunks_s: tuple[float, ...]
    chunks_ms: tuple[float, ...]
    chunks_cpu_ms: tuple[float, ...]
    stages_ms: dict[str, float]
    wall_s: float
    pcm: bytes

    @property
    def audio_s(self) -> float:
        return len(self.pcm) / 2 / SAMPLE_RATE_HZ


class Bench:
    """An engine that says forced tokens."""

    def __init__(self, options: LoadOptions, prompt_tokens: int) -> None:
        bundle = Bundle.open(options.bundle)
        self._eos = bundle.config.lm.eos_id
        self._say: Sequence[int] = ()
        self._sentences: list[list[int]] = []  # one a run, if there are several
        self._generation = 0
        voice = made_up_voice(bundle, prompt_tokens)
        self.engine: CosyVoiceEngine = load_engine(options, self._script, {VOICE: voice})
        on_cpu = self.engine.info.device == "cpu"
        self._threads = options.threads or (usual_threads() if on_cpu else torch.get_num_threads())
        began_s = perf_counter()
        self.engine.warm_up()
        self._warm_up_s = perf_counter() - began_s
        self.speak(forced_tokens(75, 9))  # the voice is prepared, every shape has been met

    def _script(self, key: UtteranceKey, run: int) -> Sequence[int]:
        return (*(self._sentences[run] if self._sentences else self._say), self._eos)

    def describe(self) -> dict[str, Figure]:
        parts = self.engine.parts
        info = dict(self.engine.info.extra)
        lm = parts.networks.lm.llm_decoder.weight.dtype
        flow = parts.networks.flow.time_tables.dtype
        return {
            "family": info["family"],
            "device": self.engine.info.device,
            "lm_dtype": str(lm).removeprefix("torch."),
            "flow_dtype": str(flow).removeprefix("torch."),
            "threads": self._threads,
            "overlap": self.engine.settings.overlap,
            "torch": torch.__version__,
            "graphs": parts.runners[0].fixed_shapes,
            "warm_up_s": round(self._warm_up_s, 2),
        }

    def _open(self, credit_samples: int = 1 << 40, segments: Sequence[Segment] = ONE) -> UtteranceKey:
        self._generation += 1
        key = UtteranceKey("bench", self._generation)
        self.engine.handle(Open(key, SynthesisParams(VOICE), credit_samples))
        for segment in segments:
            self.engine.handle(Text(key, segment))
        self.engine.handle(EndText(key))
        return key

    def speak(self, tokens: np.ndarray[tuple[int], np.dtype[np.int32]], segments: Sequence[Segment] = ONE) -> Spoken:
        """Say ``tokens`` alone, as fast as it goes. Raises SynthesisFailed."""
        engine = self.engine
        self._say = [int(token) for token in tokens]
        engine.spent.reset()
        pcm = bytearray()
        chunks_s = list[float]()
        chunks_ms = []
        cpu_ms = []
        stages_ms = dict[str, float]()
        first = (0.0, 0, 0)
        began_s = perf_counter()
        cpu_s = process_time()
        self._open(segments=segments)
        while engine.has_work:
            for event in engine.step(perf_counter()):
                if isinstance(event, Failed) or (isinstance(event, Done) and event.truncated):
                    raise SynthesisFailed("the benchmark's utterance did not come to its end")
                if isinstance(event, Audio):
                    if not pcm:
                        first = (perf_counter() - began_s, event.samples, engine.spent.tokens)
                    pcm += event.pcm
                    for name, value in event.meta.stages_ms:
                        stages_ms[name] = stages_ms.get(name, 0.0) + value
                    if event.meta.wall_ms:
                        chunks_s.append(0.0)
                        chunks_ms.append(event.meta.wall_ms)
                        cpu_ms.append(1000 * (process_time() - cpu_s))
                        cpu_s = process_time()
                    chunks_s[-1] += event.samples / SAMPLE_RATE_HZ
        wall_s = perf_counter() - began_s
        return Spoken(*first, tuple(chunks_s), tuple(chunks_ms), tuple(cpu_ms), stages_ms, wall_s, bytes(pcm))

    def _best_chunks(self, runs: Sequence[Spoken]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """What a second of each chunk takes at best, in ms, for other work only ever adds; on a CPU processor time,
        which it adds least to."""
        on_cpu = self.engine.info.device == "cpu"
        best: np.ndarray[tuple[int], np.dtype[np.float64]] = np.min(
            [run.chunks_cpu_ms if on_cpu else run.chunks_ms for run in runs], axis=0
        )
        return best / runs[0].chunks_s

    # -- what is measured ---------------------------------------------------------------------------------------------

    def first_sound(self, repeats: int) -> dict[str, Figure]:
        """Of short utterances, by a voice that is in memory."""
        spoken = [self.speak(forced_tokens(40, n)) for n in range(max(repeats, 3) * 2)]
        firsts = [1000 * one.first_s for one in spoken]
        return {
            "first_sound_p50_ms": _rounded(percentile(firsts, 50)),
            "first_sound_p95_ms": _rounded(percentile(firsts, 95)),
            "first_sound_min_ms": _rounded(min(firsts)),
            "first_sound_tokens": spoken[0].first_tokens,
            "first_chunk_audio_ms": _rounded(1000 * spoken[0].first_samples / SAMPLE_RATE_HZ),
        }

    def speed(self, seconds: float, repeats: int) -> dict[str, Figure]:
        """The real-time factor alone, and where the time goes, per second of sound."""
        runs = [self.speak(forced_tokens(int(seconds * TOKEN_RATE_HZ), n)) for n in range(repeats)]
        rtf = [run.wall_s / run.audio_s for run in runs]
        cpu = min(sum(run.chunks_cpu_ms) / 1000 / run.audio_s for run in runs)
        best = min(runs, key=lambda run: run.wall_s)
        stages = {f"{name}_ms_per_s": _rounded(value / best.audio_s) for name, value in best.stages_ms.items()}
        return {
            "rtf_p50": _rounded(percentile(rtf, 50), 4),
            "rtf_min": _rounded(min(rtf), 4),
            "rtf_cpu": _rounded(cpu, 4),
            **stages,
        }

    def growth(self, seconds: float, repeats: int) -> dict[str, Figure]:
        """What a second of sound costs along one long turn, as callers speak it: sentence after sentence, with the
        context carried. Whole chunks only, the best of all repeats, for other work only ever adds."""
        each = int(SENTENCE_S * TOKEN_RATE_HZ)
        count = max(2, round(seconds / SENTENCE_S))
        tokens = forced_tokens(each * count, 4)
        self._sentences = [tokens[n * each : (n + 1) * each].tolist() for n in range(count)]
        segments = tuple(
            Segment(n, (Span(TEXT, n * len(TEXT), (n + 1) * len(TEXT)),), n * len(TEXT), (n + 1) * len(TEXT), boundary)
            for n, boundary in enumerate([Boundary.SENTENCE] * (count - 1) + [Boundary.END])
        )
        try:
            best = self._best_chunks([self.speak(tokens, segments) for _ in range(repeats)])
        finally:
            self._sentences = []
        per = len(best) // count  # chunks of a sentence; the first and the last are of other lengths
        whole = best[: per * count].reshape(count, per)[:, 1:-1]
        part = max(1, count // 5)
        early, late = (float(np.median(some)) for some in (whole[:part], whole[-part:]))
        slope, _ = np.polyfit(np.arange(count) * SENTENCE_S, np.median(whole, axis=1), 1)
        return {
            "turn_seconds": count * SENTENCE_S,
            "second_ms_early": _rounded(early),
            "second_ms_late": _rounded(late),
            "late_over_early": _rounded(late / early, 3),
            "second_ms_slope_per_s": _rounded(float(slope), 4),
        }

    def unbroken(self, seconds: float, repeats: int) -> dict[str, Figure]:
        """The same without a sentence end: attention over all that was said makes late chunks dearer."""
        tokens = forced_tokens(int(seconds * TOKEN_RATE_HZ), 4)
        runs = [self.speak(tokens) for _ in range(repeats)]
        lengths = np.round(runs[0].chunks_s, 3)
        best = self._best_chunks(runs)[lengths == lengths.max()]  # the first ones are shorter
        if len(best) < 2:  # too short to tell
            return {}
        part = max(1, len(best) // 6)
        early = float(np.median(best[:part]))
        late = float(np.median(best[-part:]))
        return {"unbroken_seconds": seconds, "unbroken_late_over_early": _rounded(late / early, 3)}

    def sessions(self, count: int, seconds: float) -> dict[str, Figure]:
        """``count`` listeners who begin at once and hear in real time."""
        engine = self.engine
        self._say = forced_tokens(int(seconds * TOKEN_RATE_HZ), 7).tolist()
        began_s = perf_counter()
        listeners = {self._open(WINDOW_SAMPLES): _Listener() for _ in range(count)}
        while any(not listener.done for listener in listeners.values()):
            now_s = perf_counter() - began_s
            for key, listener in listeners.items():
                if taken := listener.play(now_s):
                    engine.handle(Credit(key, taken))
            for event in engine.step(perf_counter()):
                listener = listeners[event.key]
                if isinstance(event, Audio):
                    listener.hear(event.samples, perf_counter() - began_s)
                elif isinstance(event, Failed):
                    raise SynthesisFailed(f"a session failed: {event.error.message}")
                else:
                    listener.done = True
        wall_s = perf_counter() - began_s
        firsts = [1000 * listener.first_s for listener in listeners.values()]
        holes = [1000 * listener.hole_s for listener in listeners.values()]
        return {
            "sessions": count,
            "sessions_first_sound_p50_ms": _rounded(percentile(firsts, 50)),
            "sessions_first_sound_p95_ms": _rounded(percentile(firsts, 95)),
            "sessions_with_a_hole": sum(hole > 0 for hole in holes),
            "sessions_hole_p99_ms": _rounded(percentile(holes, 99)),
            "sessions_audio_s_per_s": _rounded(count * seconds / wall_s, 2),
        }

    def _device_bytes(self) -> int:
        return 0 if self.engine.info.device == "cpu" else int(torch.cuda.memory_allocated())

    def cancels(self, count: int) -> dict[str, Figure]:
        """Calls that end at random points of the pipeline: what is left of them in memory."""
        engine = self.engine
        rng = np.random.default_rng(11)
        self._say = forced_tokens(100, 8).tolist()
        before_mb = 0.0
        before_bytes = 0
        for turn in range(count):
            if turn == count // 10:  # by then everything that is kept for good is there
                before_mb = rss_mb()
                before_bytes = self._device_bytes()
            key = self._open(int(rng.integers(0, 60_000)))
            for _ in range(int(rng.integers(0, 16))):
                engine.step(perf_counter())
            engine.handle(Cancel(key))
        while engine.has_work:
            engine.step(perf_counter())
        return {
            "cancels": count,
            "cancels_rss_growth_mb": _rounded(rss_mb() - before_mb),
            "cancels_device_growth_mb": _rounded((self._device_bytes() - before_bytes) / 1e6),
            "cancels_left": engine.live,
        }


class _Listener:
    """Plays sound in real time from when it comes; ``hole_s`` is how long it had nothing to play."""

    def __init__(self) -> None:
        self.done = False
        self.first_s = self.hole_s = 0.0
        self._came = self._played = 0
        self._begins_s: float | None = None  # when the sound would have begun that plays without a hole from now on

    def hear(self, samples: int, now_s: float) -> None:
        if self._begins_s is None:
            self._begins_s = self.first_s = now_s
        late_s = now_s - self._begins_s - self._came / SAMPLE_RATE_HZ
        if late_s > 0 and self._came:
            self.hole_s += late_s
            self._begins_s += late_s
        self._came += samples

    def play(self, now_s: float) -> int:
        """How many samples were played since the last time."""
        if self._begins_s is None:
            return 0
        until = min(self._came, int((now_s - self._begins_s) * SAMPLE_RATE_HZ))
        taken = max(0, until - self._played)
        self._played = max(until, self._played)
        return taken


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)
