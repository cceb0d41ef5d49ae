"""The parts of the study. Each returns figures that can be written as JSON."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tests.quality.judge import Judge, plain_word

from tools.speech_study.calls import Calls, Said, Worker
from tools.speech_study.guard import lost_bundle, watched_guard
from tools.speech_study.measures import (
    Floats,
    compared,
    heard_words,
    joins_of,
    level_step_lu,
    pitch_step,
    pitches_hz,
    time_errors_s,
)
from tts_worker.audio.pcm import to_float
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

T = TypeVar("T")

LONG_TEXTS = (
    "Although the museum was crowded, the children enjoyed the dinosaurs, and they stayed until it closed. "
    "Their teacher had planned the trip for weeks.",
    "If you want to speak with a person, just say so, and we will call you back within two hours. "
    "There is no need to wait on the phone.",
    "First choose a language, then open the settings, and after that the computer needs to be restarted. "
    "This will take about five minutes.",
    "When the storm arrived, they turned the boat around, but the wind blew them towards the island. "
    "They were found early the next morning.",
    "The soup tastes better with a bit of salt, my grandmother always said, and we believed every word. "
    "She had been a cook when she was young.",
    "Take the second street on the left, walk to the end of the road, and you will see the church. "
    "The bakery is on the other side of the river.",
)
"""Two sentences each, the first one of three clauses."""

_STOPS = (0.35, 0.7)
_SPEEDS = (0.8, 1.0, 1.25)
_MEANWHILE = "Yes, of course."
_OTHER_RENDER_BATCH = 4


class Study:
    """Measures one bundle.

    Args:
        bundle: Model directory; None: the CPU voice, as far as it can be measured.
        sentences: What is said.
        judge: The recognizer.
        lost_noise: Noise in the language model with which it loses itself (``guard.lost_bundle``).
        options: Other settings of the engine.
    """

    def __init__(
        self, bundle: Path | None, sentences: Sequence[str], judge: Judge, lost_noise: float = 0.75, **options: Any
    ) -> None:
        self._bundle = bundle
        self._sentences = sentences
        self._judge = judge
        self._lost_noise = lost_noise
        self._options = options

    def measure(self, part: str) -> dict[str, Any]:
        """Measure one of ``PARTS``."""
        return PARTS[part](self)

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *error: Any) -> None:
        if "_worker" in self.__dict__:
            self._worker.__exit__(*error)

    @cached_property
    def _worker(self) -> Worker:
        return Worker(self._bundle, **self._options).__enter__()

    def _run(self, work: Callable[[Calls], Coroutine[Any, Any, T]], **options: Any) -> T:
        if not options:
            return self._worker.run(work)
        with Worker(self._bundle, **{**self._options, **options}) as worker:
            return worker.run(work)

    @cached_property
    def _alone(self) -> list[Said]:
        """Every sentence, one after another, each with its number as the seed."""
        return self._run(_in_turn(self._sentences))

    @cached_property
    def _alone_recognized(self) -> list[str]:
        return [self._judge.transcribe(said.pcm) for said in self._alone]

    def _wer(self, said: Sequence[Said], recognized: Sequence[str] | None = None) -> float:
        recognized = recognized or [self._judge.transcribe(one.pcm) for one in said]
        return round(self._judge.wer([one.text for one in said], recognized), 3)

    # -- parts --------------------------------------------------------------------------------------------------------

    def interleaved(self) -> dict[str, Any]:
        """Word error rate of interleaved text and of whole text."""
        with watched_guard(enabled=True) as counts:
            interleaved = self._run(_in_turn(self._sentences), text_mode="interleaved")
        return {
            "wer_whole": self._wer(self._alone, self._alone_recognized),
            "wer_interleaved": self._wer(interleaved),
            "redraws": counts["redraw"],
            "cuts": counts["cut"],
        }

    def at_once(self) -> dict[str, Any]:
        """Whether calls say at once what they say alone, also where the audio networks take several in a batch."""
        together = self._run(lambda calls: calls.speak_all(self._sentences))
        batched = self._run(lambda calls: calls.speak_all(self._sentences), render_batch=_OTHER_RENDER_BATCH)
        rounding = [
            int(np.abs(_samples(one.pcm) - _samples(other.pcm)).max()) if len(one.pcm) == len(other.pcm) else None
            for one, other in zip(self._alone, batched, strict=True)
        ]
        recognized = [self._judge.transcribe(said.pcm) for said in batched]
        return {
            "calls": len(self._sentences),
            "equal_samples": sum(a.pcm == b.pcm for a, b in zip(self._alone, together, strict=True)),
            "batch": _OTHER_RENDER_BATCH,
            "batched_equal_lengths": sum(value is not None for value in rounding),
            "batched_largest_difference": max((value for value in rounding if value is not None), default=None),
            "batched_equal_words": sum(a == b for a, b in zip(self._alone_recognized, recognized, strict=True)),
        }

    def pause(self) -> dict[str, Any]:
        """Whether audio with a pause is that without: every other sentence, where a chunk begins and 0.3 s later."""
        pauses = [
            (2 * seed, said, start + shift)
            for seed, said in enumerate(self._alone[::2])
            for start in said.chunk_starts[1:2]
            for shift in (0, SAMPLE_RATE_HZ * 3 // 10)
            if start + shift < said.samples
        ]

        async def speak(calls: Calls) -> list[tuple[Said, bool]]:
            return [await calls.speak_with_pause(said.text, at, _MEANWHILE, seed) for seed, said, at in pauses]

        paused = self._run(speak)
        return {
            "pauses": len(pauses),
            "equal_samples": sum(
                said.pcm == whole.pcm for (said, _), (_, whole, _) in zip(paused, pauses, strict=True)
            ),
            "frames_during_pause": sum(early for _, early in paused),
        }

    def stop(self) -> dict[str, Any]:
        """Compare the words of the playback report after a STOP with those recognized in the audio that was sent."""
        alone = self._alone

        async def speak(calls: Calls) -> list[Said]:
            return [
                await calls.speak_until(said.text, round(share * said.samples), seed)
                for seed, said in enumerate(alone)
                for share in _STOPS
            ]

        stopped = self._run(speak)
        differences = [
            len(said.receipt.text_spoken.split()) - heard_words(said.text.split(), self._judge.transcribe(said.pcm))
            for said in stopped
        ]
        return {"stops": len(stopped), **_differences(differences)}

    def joins(self) -> dict[str, Any]:
        """Steps of level and pitch where clauses and sentences begin, and at other words."""
        said = self._run(_in_turn(LONG_TEXTS))
        steps: dict[str, list[tuple[float, float]]] = {"clauses": [], "sentences": [], "elsewhere": []}
        for one in said:
            audio = to_float(one.pcm)
            pitch = pitches_hz(audio)
            joins = joins_of(one.text, one.words)
            for kind, found in steps.items():
                found += [(level_step_lu(audio, at), pitch_step(pitch, at)) for at in getattr(joins, kind)]
        return {
            f"{kind}_{name}": compared([step[i] for step in steps[kind]], [step[i] for step in steps["elsewhere"]])
            for kind in ("clauses", "sentences")
            for i, name in enumerate(("level_lu", "pitch_semitones"))
        }

    def speed(self) -> dict[str, Any]:
        """Word error rate, quality score and word times of slower and faster speech."""
        usual = sum(said.samples for said in self._alone)
        result = {}
        for speed in _SPEEDS:
            said = self._alone if speed == 1.0 else self._run(_in_turn(self._sentences, speed))
            result[f"{speed:g}"] = {
                "wer": self._wer(said),
                "mos": round(float(np.mean([self._judge.mos(one.pcm) for one in said])), 2),
                "duration": round(sum(one.samples for one in said) / usual, 3),
                "median_word_error_ms": self._word_errors(said)["median_error_ms"],
            }
        return result

    def words(self) -> dict[str, Any]:
        """Compare the announced word times with the recognizer's."""
        return self._word_errors(self._alone)

    def _word_errors(self, utterances: Sequence[Said]) -> dict[str, Any]:
        errors: list[float] = []
        announced = 0
        for said in utterances:
            ours = [(plain_word(word.text), word.start_sample / SAMPLE_RATE_HZ) for word in said.words]
            announced += len(ours)
            theirs = [(word.text, word.start_s) for word in self._judge.word_times(said.pcm)]
            errors += time_errors_s(ours, theirs)
        sizes_ms = 1000 * np.abs(errors)
        return {
            "words": announced,
            "recognized": len(errors),
            "median_error_ms": round(float(np.median(sizes_ms))),
            "p95_error_ms": round(float(np.percentile(sizes_ms, 95))),
            "median_lateness_ms": round(1000 * float(np.median(errors))),
        }

    def guard(self) -> dict[str, Any]:
        """Cuts and redraws of a model that loses itself, and its word error rate with the guard and without it."""
        assert self._bundle is not None
        result: dict[str, Any] = {"noise": self._lost_noise, "utterances": len(self._sentences)}
        for name, enabled in (("with", True), ("without", False)):
            with tempfile.TemporaryDirectory() as folder, watched_guard(enabled=enabled) as counts:
                bundle = lost_bundle(Bundle.open(self._bundle), Path(folder), self._lost_noise)
                with Worker(bundle, **self._options) as worker:
                    said = worker.run(_in_turn(self._sentences))
            seconds = sum(one.samples for one in said) / SAMPLE_RATE_HZ
            result[name] = {"wer": self._wer(said), "audio_s": round(seconds, 1), **counts}
        return result


PARTS: dict[str, Callable[[Study], dict[str, Any]]] = {
    "interleaved": Study.interleaved,
    "at_once": Study.at_once,
    "pause": Study.pause,
    "stop": Study.stop,
    "joins": Study.joins,
    "speed": Study.speed,
    "words": Study.words,
    "guard": Study.guard,
}
OF_ANY_VOICE = ("stop", "joins", "words")
"""Parts that can be measured with the CPU voice, as a reference."""


def _in_turn(texts: Sequence[str], speed: float = 1.0) -> Callable[[Calls], Coroutine[Any, Any, list[Said]]]:
    async def speak(calls: Calls) -> list[Said]:
        return [await calls.speak(text, seed, speed) for seed, text in enumerate(texts)]

    return speak


def _samples(pcm: bytes) -> Floats:
    assert len(pcm) % BYTES_PER_SAMPLE == 0
    return np.frombuffer(pcm, "<i2").astype(np.int64)


def _differences(differences: Sequence[int]) -> dict[str, Any]:
    return {
        "equal": sum(difference == 0 for difference in differences),
        "within_one_word": sum(abs(difference) <= 1 for difference in differences),
        "mean_difference": round(float(np.mean(differences)), 2),
        "differences": list(differences),
    }
