"""Drives the CosyVoice engine with forced tokens and measures it by stage; random weights suffice.

Needs what the engine needs. The language model runs and samples as usual; the sampled tokens are then
overwritten with prepared ones, so that every run has the requested length. Times are wall-clock times; first audio is
timed from the first command of an utterance to the event that carries audio.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

import numpy as np
import torch

from tools.bench.memory import rss_mb
from tools.bench.playback import PlaybackClient, failure_of
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.loader import LoadOptions, default_threads, load_engine
from tts_worker.engine.engine_thread import SWITCH_INTERVAL_S
from tts_worker.errors import SynthesisFailed
from tts_worker.features.bench.stats import Figure, percentile
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Audio,
    Boundary,
    Cancel,
    Credit,
    EndText,
    Failed,
    Open,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
)
from tts_worker.voices.files import Voice

TEXT = "The quick brown fox jumps over the lazy dog, and nothing is late."
WINDOW_SAMPLES = 3 * SAMPLE_RATE_HZ // 2  # playout lead allowed per session
ONE_SEGMENT = (Segment.whole(TEXT),)
SENTENCE_S = 6
SHORT_TURN_S = 1.6
VOICE = "benchmark"
_SESSION = "bench"
MAX_LENGTH_S = 100  # audio that fits the language model's context


def random_voice(bundle: Bundle, tokens: int, seed: int = 0) -> Voice:
    """Return a voice with a random prompt of ``tokens`` speech tokens and a transcript."""
    config = bundle.config
    rng = np.random.default_rng(seed)
    return Voice(
        family=config.family,
        prompt_text="",
        prompt_text_ids=rng.integers(0, 200, max(4, tokens // 6)).astype(np.int32),
        tokens=forced_tokens(tokens, seed + 1),
        mel=rng.standard_normal((config.flow.frames(tokens), config.mel.bins)).astype(np.float32),
        embedding=rng.standard_normal(config.flow.spk_embed).astype(np.float32),
        seconds=tokens / config.token_rate_hz,
    )


def forced_tokens(count: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return random speech token ids that every family has, without silent ones, which may be dropped."""
    return np.random.default_rng(seed).integers(2500, 4096, count).astype(np.int32)


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
    """Drives an engine with forced tokens. Threads of the process switch as often as those of the server.

    Attributes:
        engine: The engine.
        tokens_of: Returns the tokens of a run for utterances that the caller opens; None for those of ``speak``.
        warm_up_s: What the warm-up took, captures included.

    Args:
        options: How the engine is loaded.
        prompt_tokens: Speech tokens of the voice's prompt.
        networks: Those of another engine of the same options, as for ``load_engine``.
    """

    def __init__(self, options: LoadOptions, prompt_tokens: int, networks: Networks | None = None) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        bundle = Bundle.open(options.bundle)
        self._eos = bundle.config.lm.eos_id
        self._token_rate_hz = bundle.config.token_rate_hz
        self.tokens_of: Callable[[UtteranceKey, int], Sequence[int]] | None = None
        self._tokens: Sequence[int] = ()
        self._sentences: list[list[int]] = []  # tokens per run, for several sentences
        self._generation = 0
        voice = random_voice(bundle, prompt_tokens)
        self.engine: CosyVoiceEngine = load_engine(options, self._script, {VOICE: voice}, networks=networks)
        on_cpu = self.engine.info.device == "cpu"
        self._threads = options.threads or (default_threads() if on_cpu else torch.get_num_threads())
        began_s = perf_counter()
        self.engine.warm_up()
        self.warm_up_s = perf_counter() - began_s
        self.speak(forced_tokens(75, 9))  # prepares the voice and warms up every shape

    def _script(self, key: UtteranceKey, run: int) -> Sequence[int]:
        if self.tokens_of is not None and key.session != _SESSION:
            return (*self.tokens_of(key, run), self._eos)
        return (*(self._sentences[run] if self._sentences else self._tokens), self._eos)

    def describe(self) -> dict[str, Figure]:
        parts = self.engine.components
        info = dict(self.engine.info.extra)
        lm = parts.networks.lm.llm_decoder.weight.dtype
        flow = parts.networks.flow.dtype
        return {
            "family": info["family"],
            "device": self.engine.info.device,
            "lm_dtype": str(lm).removeprefix("torch."),
            "flow_dtype": str(flow).removeprefix("torch."),
            "threads": self._threads,
            "overlap": self.engine.settings.overlap,
            "torch": torch.__version__,
            "products": info.get("products"),
            "graphs": parts.graph_runners[0].fixed_shapes,
            "warm_up_s": round(self.warm_up_s, 2),
        }

    def _open(self, credit_samples: int = 1 << 40, segments: Sequence[Segment] = ONE_SEGMENT) -> UtteranceKey:
        self._generation += 1
        key = UtteranceKey(_SESSION, self._generation)
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
                if reason := failure_of(event):
                    raise SynthesisFailed(f"an utterance of the benchmark failed: {reason}")
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
        tokens = int(SHORT_TURN_S * self._token_rate_hz)
        spoken = [self.speak(forced_tokens(tokens, n)) for n in range(max(repeats, 3) * 2)]
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
        runs = [self.speak(forced_tokens(int(seconds * self._token_rate_hz), n)) for n in range(repeats)]
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
        each = int(SENTENCE_S * self._token_rate_hz)
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
        tokens = forced_tokens(int(seconds * self._token_rate_hz), 4)
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
        self._tokens = forced_tokens(int(seconds * self._token_rate_hz), 7).tolist()
        began_s = perf_counter()
        clients = {self._open(WINDOW_SAMPLES): PlaybackClient() for _ in range(count)}
        running = set(clients)
        while running:
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
                    running.discard(event.key)
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
        device = self.engine.info.device
        return 0 if device == "cpu" else int(torch.cuda.memory_allocated(device))

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
            "cancels_left": len(engine.sequences),
        }


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)
