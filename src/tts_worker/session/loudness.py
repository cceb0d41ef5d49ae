"""Brings voices to one loudness: one gain per voice, measured once and then fixed.

The loudness of a voice comes from its voice pack. That of any other voice is measured from a sentence that it speaks
when it is enrolled or first used; its first utterance waits for that. The gain never changes while the engine is
loaded, so the level has no seams.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

from tts_worker.audio.loudness import lufs_for_gain
from tts_worker.session.engine_port import CommandPort
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Audio,
    Cancel,
    Credit,
    Done,
    EndText,
    Event,
    Failed,
    Open,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)

log = logging.getLogger(__name__)

MAX_GAIN_DB = 20.0
"""More would amplify the noise of a nearly silent voice."""

TIME_LIMIT_S = 10.0
"""A voice that takes longer to speak the sentence keeps its level: late speech is worse than quiet speech."""

_ATTEMPTS = 3
"""Failed measurements, such as by a fault of the engine, after which a voice keeps its level."""

_CREDIT_SAMPLES = SAMPLE_RATE_HZ
"""Audio of the sentence that the engine may generate ahead."""

_MAX_SAMPLES = 20 * SAMPLE_RATE_HZ
"""A voice that speaks longer does not end, and keeps its level."""

_generations = itertools.count(1)  # of the utterances of measurements, over all voices

SENTENCE = "The loudness of this voice is measured once, from one quiet, ordinary sentence, and then it stays as it is."
SENTENCE_ZH = "我们只用这一句普通的话来测量声音的响度，以后就不会再改变了。"


class VoiceLoudness:
    """The gains of the voices of a process.

    Args:
        target_lufs: Integrated loudness of every voice.
        segments: Turns a text for a voice into segments.
        time_limit_s: Time limit of a measurement.
    """

    def __init__(
        self,
        target_lufs: float,
        segments: Callable[[SynthesisParams, str], Sequence[Segment]],
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self._target_lufs = target_lufs
        self._segments = segments
        self._time_limit_s = time_limit_s
        self._gains: dict[tuple[str, str], float] = {}
        self._measurements: dict[tuple[str, str], _Measurement] = {}
        self._failures: dict[tuple[str, str], int] = {}

    def gain(self, engine: str, voice: str) -> float:
        """Return the linear gain of a voice, 1.0 if it is not known."""
        return self._gains.get((engine, voice), 1.0)

    def is_known(self, engine: str, voice: str) -> bool:
        return (engine, voice) in self._gains

    def set_loudness(self, engine: str, voice: str, lufs: float) -> None:
        """Fix the gain of a voice, unless it is fixed already. Minus infinity (silence) leaves the level as it is."""
        gain_db = 0.0 if math.isinf(lufs) else self._target_lufs - lufs
        gain_db = max(-MAX_GAIN_DB, min(MAX_GAIN_DB, gain_db))
        self._gains.setdefault((engine, voice), 10 ** (gain_db / 20))

    def prepare(self, name: str, engine: CommandPort, params: SynthesisParams) -> None:
        """Measure a voice before it is used, unless its gain is known."""
        if not self.is_known(name, params.voice):
            self.measure(name, engine, params, lambda: None)

    def measure(self, name: str, engine: CommandPort, params: SynthesisParams, on_known: Callable[[], None]) -> None:
        """Measure a voice unless that is under way, and call ``on_known`` when that has ended.

        Args:
            name: Name of the engine.
            engine: The engine.
            params: Selects the voice; speed, seed and instruction are ignored.
            on_known: Called in a later iteration of the event loop, or when the voice is forgotten.
        """
        key = (name, params.voice)
        if key not in self._measurements:
            chinese = bool(params.language and params.language.startswith("zh"))
            segments = self._segments(params, SENTENCE_ZH if chinese else SENTENCE)
            self._measurements[key] = _Measurement(
                engine,
                SynthesisParams(params.voice),
                segments,
                self._target_lufs,
                self._time_limit_s,
                partial(self._on_measured, key),
            )
        self._measurements[key].waiting.append(on_known)

    def _on_measured(self, key: tuple[str, str], lufs: float | None) -> None:
        measurement = self._measurements.pop(key, None)
        if measurement is None:
            return  # the voice or the engine was removed
        engine, voice = key
        if lufs is None or math.isinf(lufs):
            log.warning("the loudness of voice %s of engine %s could not be measured; its level stays", voice, engine)
        else:
            log.info("voice %s of engine %s has %.1f LUFS", voice, engine, lufs)
        if lufs is None:
            self._failures[key] = self._failures.get(key, 0) + 1
        if lufs is not None or self._failures[key] == _ATTEMPTS:
            self.set_loudness(engine, voice, -math.inf if lufs is None else lufs)
        for on_known in measurement.waiting:
            on_known()

    def forget(self, engine: str, voice: str | None = None) -> None:
        """Forget a voice that was deleted, or all voices of an engine that is unloaded."""
        known = (*self._gains, *self._failures, *self._measurements)
        for key in [key for key in known if key[0] == engine and voice in (None, key[1])]:
            self._gains.pop(key, None)
            self._failures.pop(key, None)
            if (measurement := self._measurements.pop(key, None)) is not None:
                measurement.cancel()
                for on_known in measurement.waiting:
                    on_known()


class _Measurement:
    """One sentence spoken by a voice, without a session.

    Attributes:
        waiting: Called when the gain is fixed.
    """

    def __init__(
        self,
        engine: CommandPort,
        params: SynthesisParams,
        segments: Sequence[Segment],
        target_lufs: float,
        time_limit_s: float,
        on_done: Callable[[float | None], None],
    ) -> None:
        self.waiting: list[Callable[[], None]] = []
        self._engine = engine
        self._target_lufs = target_lufs
        self._on_done = on_done
        self._key = UtteranceKey(f"loudness-{params.voice}", next(_generations))
        self._audio: list[bytes] = []
        self._samples = 0
        self._is_cancelled = False
        self._timer = asyncio.get_running_loop().call_later(time_limit_s, self._finish, -math.inf)
        engine.subscribe(self._key.session, self._on_event)
        engine.post(Open(self._key, params, _CREDIT_SAMPLES, paced=True))
        for segment in segments:
            engine.post(Text(self._key, segment))
        engine.post(EndText(self._key))

    def _on_event(self, event: Event) -> None:
        match event:
            case Audio():
                self._audio.append(event.pcm)
                self._samples += event.samples
                if self._samples > _MAX_SAMPLES:
                    self._finish(-math.inf)
                else:
                    self._engine.post(Credit(self._key, event.samples))
            case Failed():
                log.warning("the loudness of voice %s: %s", self._key.session, event.error.message)
                self._finish(None)
            case Done():
                self._close()
                pcm = b"".join(self._audio)
                loop = asyncio.get_running_loop()
                measured = loop.run_in_executor(None, lufs_for_gain, pcm, SAMPLE_RATE_HZ, self._target_lufs)
                measured.add_done_callback(self._on_measured)

    def _on_measured(self, done: asyncio.Future[float]) -> None:
        if not self._is_cancelled:
            self._on_done(done.result())

    def _finish(self, lufs: float | None) -> None:
        self.cancel()
        self._on_done(lufs)

    def cancel(self) -> None:
        """End the utterance without a result."""
        self._is_cancelled = True
        self._engine.post(Cancel(self._key))
        self._close()

    def _close(self) -> None:
        self._timer.cancel()
        self._engine.unsubscribe(self._key.session)
