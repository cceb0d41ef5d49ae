"""``tts-worker bench engine``: the CosyVoice engine by stage, with forced tokens; random weights suffice.

Needs only torch, numpy and tokenizers. The language model runs and samples as usual; the sampled tokens are then
overwritten with prepared ones, so that every run has the requested length. Times are wall-clock times; first audio is
timed from the first command of an utterance to the event that carries audio.
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
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.loader import LoadOptions, default_threads, load_engine
from tts_worker.engine.cosyvoice.sequence import plain_segment
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
TEXT = "The quick brown fox jumps over the lazy dog, and nothing is late."
WINDOW_SAMPLES = 3 * SAMPLE_RATE_HZ // 2  # playout lead allowed per session
ONE_SEGMENT = (plain_segment(TEXT),)
SENTENCE_S = 6
VOICE = "benchmark"
MAX_LENGTH_S = 100  # audio that fits the language model's context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bundle", type=Path, required=True, metavar="DIR", help="model directory; random weights suffice"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="audio length for the real-time factor (default 20)"
    )
    parser.add_argument(
        "--growth-seconds", type=float, default=60.0, help="length of the long turn, at least 12 (default 60)"
    )
    parser.add_argument(
        "--prompt-tokens", type=int, default=125, help="prompt length of the random voice (default 125: 5 s)"
    )
    parser.add_argument("--sessions", type=int, default=1, help="concurrent real-time sessions (default 1)")
    parser.add_argument("--session-seconds", type=float, default=6.0, help="audio length of each session (default 6)")
    parser.add_argument("--cancels", type=int, default=0, help="utterances to cancel at random points (default 0)")
    parser.add_argument("--repeats", type=int, default=5, help="runs for medians and minima (default 5)")
    parser.add_argument(
        "--first-tokens", type=int, default=8, help="speech tokens before the first chunk boundary (default 8)"
    )
    parser.add_argument("--stride-chunks", type=int, help="chunks per step after the first ones (default: by device)")
    parser.add_argument("--memory-gb", type=float, help="memory for utterances (default: by device)")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="run the flow beside language model and vocoder on a CPU (default: with four cores)",
    )
    parser.add_argument("--half", action="store_true", default=None, help="use bfloat16, also on a CPU")
    parser.add_argument("--no-graphs", action="store_true", help="disable CUDA graphs")
    parser.add_argument("--smooth-start", action="store_true", help="delay a first chunk that an underrun would follow")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    lengths_s = (args.seconds, args.growth_seconds, args.session_seconds)
    if not all(1.0 <= length_s <= MAX_LENGTH_S for length_s in lengths_s):
        raise InvalidRequest(f"--seconds, --growth-seconds and --session-seconds must be 1 to {MAX_LENGTH_S}")
    if args.growth_seconds < 2 * SENTENCE_S:
        raise InvalidRequest(f"--growth-seconds must be at least {2 * SENTENCE_S} (two sentences)")
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
        max_segment_s=int(max(lengths_s)) + 2,
        memory_gb=args.memory_gb,
        smooth_start=args.smooth_start,
    )
    bench = Bench(options, args.prompt_tokens)
    figures = bench.describe()
    figures |= bench.first_audio(args.repeats)
    figures |= bench.speed(args.seconds, args.repeats)
    figures |= bench.growth(args.growth_seconds, args.repeats)
    figures |= bench.unbroken(args.seconds, args.repeats)
    if args.cancels > 0:
        figures |= bench.cancels(args.cancels)
    if args.sessions > 1:
        figures |= bench.sessions(args.sessions, args.session_seconds)
    show(figures, args.json)
    return 0


def random_voice(bundle: Bundle, tokens: int, seed: int = 0) -> Voice:
    """Return a voice with a random prompt of ``tokens`` speech tokens and a transcript."""
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
    """Return random speech token ids without silent ones, which may be dropped."""
    return np.random.default_rng(seed).integers(2500, 6500, count).astype(np.int32)


@dataclass(frozen=True)
class UtteranceTimes:
    """Measurements of one utterance.

    Attributes:
        first_s: Time to first audio.
        first_samples: Samples of the first chunk.
        first_tokens: Speech tokens generated before the first chunk.
        chunks_s: Audio seconds of each chunk.
        chunks_ms: Wall time of each chunk.
        chunks_cpu_ms: Processor time of each chunk.
        stages_ms: Total time by stage.
        wall_s: Wall time of the utterance.
        pcm: The audio, PCM16LE.
    """

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
    """Drives an engine with forced tokens."""

    def __init__(self, options: LoadOptions, prompt_tokens: int) -> None:
        bundle = Bundle.open(options.bundle)
        self._eos = bundle.config.lm.eos_id
        self._tokens: Sequence[int] = ()
        self._sentences: list[list[int]] = []  # tokens per run, for several sentences
        self._generation = 0
        voice = random_voice(bundle, prompt_tokens)
        self.engine: CosyVoiceEngine = load_engine(options, self._script, {VOICE: voice})
        on_cpu = self.engine.info.device == "cpu"
        self._threads = options.threads or (default_threads() if on_cpu else torch.get_num_threads())
        began_s = perf_counter()
        self.engine.warm_up()
        self._warm_up_s = perf_counter() - began_s
        self.speak(forced_tokens(75, 9))  # prepares the voice and warms up every shape

    def _script(self, key: UtteranceKey, run: int) -> Sequence[int]:
        return (*(self._sentences[run] if self._sentences else self._tokens), self._eos)

    def describe(self) -> dict[str, Figure]:
        parts = self.engine.components
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

    def _open(self, credit_samples: int = 1 << 40, segments: Sequence[Segment] = ONE_SEGMENT) -> UtteranceKey:
        self._generation += 1
        key = UtteranceKey("bench", self._generation)
        self.engine.handle(Open(key, SynthesisParams(VOICE), credit_samples))
        for segment in segments:
            self.engine.handle(Text(key, segment))
        self.engine.handle(EndText(key))
        return key

    def speak(
        self, tokens: np.ndarray[tuple[int], np.dtype[np.int32]], segments: Sequence[Segment] = ONE_SEGMENT
    ) -> UtteranceTimes:
        """Synthesize ``tokens`` alone, as fast as possible.

        Raises:
            SynthesisFailed: The utterance did not end normally.
        """
        engine = self.engine
        self._tokens = [int(token) for token in tokens]
        engine.timings.reset()
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
                    raise SynthesisFailed("the utterance of the benchmark did not end normally")
                if isinstance(event, Audio):
                    if not pcm:
                        first = (perf_counter() - began_s, event.samples, engine.timings.tokens)
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
        return UtteranceTimes(*first, tuple(chunks_s), tuple(chunks_ms), tuple(cpu_ms), stages_ms, wall_s, bytes(pcm))

    def _best_chunks(self, runs: Sequence[UtteranceTimes]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the least time per audio second of each chunk, in ms, over all runs.

        The minimum excludes interference from other processes. On a CPU it is processor time, which they affect least.
        """
        on_cpu = self.engine.info.device == "cpu"
        best: np.ndarray[tuple[int], np.dtype[np.float64]] = np.min(
            [run.chunks_cpu_ms if on_cpu else run.chunks_ms for run in runs], axis=0
        )
        return best / runs[0].chunks_s

    # -- measurements ---------------------------------------------------------------------------------------------

    def first_audio(self, repeats: int) -> dict[str, Figure]:
        """Measure the first-audio latency of short utterances, with a voice in memory."""
        spoken = [self.speak(forced_tokens(40, n)) for n in range(max(repeats, 3) * 2)]
        firsts = [1000 * one.first_s for one in spoken]
        return {
            "first_audio_p50_ms": _rounded(percentile(firsts, 50)),
            "first_audio_p95_ms": _rounded(percentile(firsts, 95)),
            "first_audio_min_ms": _rounded(min(firsts)),
            "first_audio_tokens": spoken[0].first_tokens,
            "first_chunk_audio_ms": _rounded(1000 * spoken[0].first_samples / SAMPLE_RATE_HZ),
        }

    def speed(self, seconds: float, repeats: int) -> dict[str, Figure]:
        """Measure the real-time factor of one utterance, and the time by stage per audio second."""
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
        """Measure how the cost of an audio second grows along one long turn of several sentences with carried context.

        Uses whole chunks only, and the best of all repeats.
        """
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
        per = len(best) // count  # chunks per sentence; the first and last differ in length
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
        """Measure the growth without sentence ends, where attention over a longer context makes late chunks slower."""
        tokens = forced_tokens(int(seconds * TOKEN_RATE_HZ), 4)
        runs = [self.speak(tokens) for _ in range(repeats)]
        lengths = np.round(runs[0].chunks_s, 3)
        best = self._best_chunks(runs)[lengths == lengths.max()]  # the first chunks are shorter
        if len(best) < 2:  # too short to compare
            return {}
        part = max(1, len(best) // 6)
        early = float(np.median(best[:part]))
        late = float(np.median(best[-part:]))
        return {"unbroken_seconds": seconds, "unbroken_late_over_early": _rounded(late / early, 3)}

    def sessions(self, count: int, seconds: float) -> dict[str, Figure]:
        """Measure ``count`` real-time sessions that start at the same time."""
        engine = self.engine
        self._tokens = forced_tokens(int(seconds * TOKEN_RATE_HZ), 7).tolist()
        began_s = perf_counter()
        clients = {self._open(WINDOW_SAMPLES): _PlaybackClient() for _ in range(count)}
        while any(not client.done for client in clients.values()):
            now_s = perf_counter() - began_s
            for key, client in clients.items():
                if played := client.play(now_s):
                    engine.handle(Credit(key, played))
            for event in engine.step(perf_counter()):
                client = clients[event.key]
                if isinstance(event, Audio):
                    client.receive(event.samples, perf_counter() - began_s)
                elif isinstance(event, Failed):
                    raise SynthesisFailed(f"a session failed: {event.error.message}")
                else:
                    client.done = True
        wall_s = perf_counter() - began_s
        firsts = [1000 * client.first_s for client in clients.values()]
        underruns_ms = [1000 * client.underrun_s for client in clients.values()]
        return {
            "sessions": count,
            "sessions_first_audio_p50_ms": _rounded(percentile(firsts, 50)),
            "sessions_first_audio_p95_ms": _rounded(percentile(firsts, 95)),
            "sessions_with_underruns": sum(underrun_ms > 0 for underrun_ms in underruns_ms),
            "sessions_underrun_p99_ms": _rounded(percentile(underruns_ms, 99)),
            "sessions_audio_s_per_s": _rounded(count * seconds / wall_s, 2),
        }

    def _device_bytes(self) -> int:
        return 0 if self.engine.info.device == "cpu" else int(torch.cuda.memory_allocated())

    def cancels(self, count: int) -> dict[str, Figure]:
        """Measure memory growth after utterances that are cancelled at random points of the pipeline."""
        engine = self.engine
        rng = np.random.default_rng(11)
        self._tokens = forced_tokens(100, 8).tolist()
        before_mb = 0.0
        before_bytes = 0
        for turn in range(count):
            if turn == count // 10:  # permanent allocations are complete by now
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
            "cancels_left": engine.active_utterances,
        }


class _PlaybackClient:
    """Plays audio in real time from its arrival; ``underrun_s`` is the total time without audio."""

    def __init__(self) -> None:
        self.done = False
        self.first_s = self.underrun_s = 0.0
        self._received = self._played = 0
        self._playback_start_s: float | None = None  # playback start, shifted by every underrun

    def receive(self, samples: int, now_s: float) -> None:
        if self._playback_start_s is None:
            self._playback_start_s = self.first_s = now_s
        late_s = now_s - self._playback_start_s - self._received / SAMPLE_RATE_HZ
        if late_s > 0 and self._received:
            self.underrun_s += late_s
            self._playback_start_s += late_s
        self._received += samples

    def play(self, now_s: float) -> int:
        """Return the samples played since the last call."""
        if self._playback_start_s is None:
            return 0
        until = min(self._received, int((now_s - self._playback_start_s) * SAMPLE_RATE_HZ))
        played = max(0, until - self._played)
        self._played = max(until, self._played)
        return played


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)
