"""Finds the phonemes of a recording: a voice that is known says the same text, and both are compared.

A hidden Markov model has a state for each audible frame of the reference, and a silence wherever words may pause. The
most likely way through it gives each frame of the recording a state, and with that a phoneme: dynamic time warping
(Sakoe and Chiba, 1978) in which pauses are free. Once recordings are aligned, the spectra of the reference can be
mapped to those of the new voice, which makes the next alignment better (Stylianou et al., 1998).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tools.train.fast.acoustics import log_mels, runs
from tools.train.fast.teacher import FRAMES_PER_DURATION
from tts_worker.audio.pcm import Floats

_WINDOW, _BINS, _CEPSTRA = 720, 40, 16
_DB = np.log(10) / 10  # of power
_LOUD_PERCENTILE, _NOISE_PERCENTILE = 90, 5
_LOWEST_FLOOR_DB, _HIGHEST_FLOOR_DB = -45.0, -32.0  # under loud frames
_FLOOR_ABOVE_NOISE_DB = 3.0
_SILENCE_ABOVE_FLOOR_DB = 10.0
_SLOPE_FRAMES = 2
_STEP_COSTS = (1.0, 0.0, 0.6, 1.4)  # of going on by so many states
_PAUSE_COST = 3.0
_SILENT_FRAME_COST, _AUDIBLE_DB_COST = 1.0, 0.3  # of a frame in a pause
_RIDGE = 10.0

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class AudioFrames:
    """F frames of audio, as they are compared.

    Attributes:
        cepstra: Cepstra and their slopes ``[F, V]``, without what is constant.
        above_silence_db: How far each frame is above what may be a pause ``[F]``.
        floor_db: Level under loud frames, below which the cepstra do not differ.
    """

    cepstra: Floats
    above_silence_db: Floats
    floor_db: float

    @property
    def is_silent(self) -> Bools:
        return np.asarray(self.above_silence_db <= 0, np.bool_)

    @property
    def first_audible(self) -> int:
        """The first frame that is not silent; 0 if there is none."""
        return int(self.is_silent.argmin())

    @property
    def speech_frames(self) -> int:
        """Frames from the first to the last one that is not silent."""
        audible = np.flatnonzero(~self.is_silent)
        return int(audible[-1] - audible[0]) + 1 if len(audible) else 0

    @classmethod
    def of(cls, samples: Floats, frames: int, floor_db: float | None = None) -> AudioFrames:
        """Analyze audio at 24 kHz.

        Args:
            samples: The audio.
            frames: F.
            floor_db: That of other audio, with which it is compared; None finds it from the noise.
        """
        mels = log_mels(samples, frames, window=_WINDOW, bins=_BINS, floor=1e-9)
        level = np.log(np.exp(mels).mean(1))
        loud, noise = np.percentile(level, (_LOUD_PERCENTILE, _NOISE_PERCENTILE))
        if floor_db is None:
            above_noise = (noise - loud) / _DB + _FLOOR_ABOVE_NOISE_DB
            floor_db = float(np.clip(above_noise, _LOWEST_FLOOR_DB, _HIGHEST_FLOOR_DB))
        floor = loud + floor_db * _DB
        above_silence_db = (level - floor) / _DB - _SILENCE_ABOVE_FLOOR_DB
        angles = (np.arange(_BINS) + 0.5) * np.pi / _BINS
        cepstra = np.maximum(mels, floor) @ (np.cos(angles[:, None] * np.arange(_CEPSTRA)) * np.sqrt(2 / _BINS))
        is_audible = above_silence_db > 0
        cepstra -= cepstra[is_audible].mean(0) if is_audible.any() else cepstra.mean(0)
        padded = np.pad(cepstra, ((_SLOPE_FRAMES, _SLOPE_FRAMES), (0, 0)), mode="edge")
        slopes = padded[2 * _SLOPE_FRAMES :] - padded[: -2 * _SLOPE_FRAMES]
        features = np.hstack([cepstra, slopes]).astype(np.float32)
        return cls(features, above_silence_db.astype(np.float32), floor_db)


@dataclass(frozen=True)
class Reference:
    """L phoneme ids as a known voice says them in F frames.

    Attributes:
        audio: The audio.
        frames: Frames of each id ``[L]``, of sum F.
        may_pause: Whether there may be silence before or in an id ``[L]``: pads, spaces and marks.
        is_voiced: Which frames are voiced ``[F]``.
    """

    audio: AudioFrames
    frames: Ints
    may_pause: Bools
    is_voiced: Bools


@dataclass(frozen=True)
class Alignment:
    """Where L phoneme ids are in a recording of F frames.

    Attributes:
        begins: Frame at which each id begins ``[L]``.
        states: Frame of the reference that each frame is most like, -1 in a pause ``[F]``.
        costs: Distance of each frame from that of the reference, 0 in a pause ``[F]``.
    """

    begins: Ints
    states: Ints
    costs: Floats

    @property
    def cost(self) -> float:
        """Mean distance of the frames that are not in a pause."""
        is_spoken = self.states >= 0
        return float(self.costs[is_spoken].mean()) if is_spoken.any() else float("inf")


@dataclass(frozen=True)
class _States:
    """The S states of a model.

    Attributes:
        frames: Frame of the reference, -1 for a pause ``[S]``.
        ids: Which phoneme id has the state ``[S]``.
        sources: From where each state can be reached ``[N, S]``.
        costs: What that costs, infinity if it cannot ``[N, S]``.
    """

    frames: Ints
    ids: Ints
    sources: Ints
    costs: NDArray[np.float64]

    @classmethod
    def of(cls, reference: Reference) -> _States:
        ids = np.repeat(np.arange(len(reference.frames)), reference.frames)
        may_pause, is_silent = reference.may_pause[ids], reference.audio.is_silent
        audible = np.flatnonzero(~(may_pause & is_silent))
        pauses = [begin + int(is_silent[begin:end].argmax()) for begin, end in runs(may_pause)]
        places = np.searchsorted(audible, pauses)
        frames = np.insert(audible, places, -1)
        return cls(frames, np.insert(ids[audible], places, ids[pauses]), *_steps(frames < 0))


def _steps(is_pause: Bools) -> tuple[Ints, NDArray[np.float64]]:
    """Return from where each state can be reached, and the costs: the steps, and the one out of a pause."""
    count = len(is_pause)
    sources = np.zeros((len(_STEP_COSTS) + 1, count), np.int64)
    costs = np.full(sources.shape, np.inf)
    audible = np.flatnonzero(~is_pause)
    passed = np.cumsum(~is_pause)  # audible states up to this one
    for state in range(count):
        for step, cost in enumerate(_STEP_COSTS):
            place = passed[state] - step - (not is_pause[state])
            if is_pause[state] and step == 0:
                sources[0, state], costs[0, state] = state, 0.0
            elif place >= 0:
                sources[step, state], costs[step, state] = audible[place], cost + _PAUSE_COST * is_pause[state]
        pauses = [step for step in range(1, len(_STEP_COSTS)) if step <= state and is_pause[state - step]]
        if pauses and not is_pause[state]:
            sources[-1, state], costs[-1, state] = state - pauses[0], _STEP_COSTS[pauses[0]]
    return sources, costs


def align(audio: AudioFrames, reference: Reference) -> Alignment:
    """Find the phoneme ids of a reference in a recording of F frames, from its first to its last frame."""
    states = _States.of(reference)
    distances = _distances(audio, reference, states)
    frames, count = distances.shape
    ends = len(_STEP_COSTS)  # states with which a recording may begin or end
    score = np.where(np.arange(count) < ends, distances[0], np.inf)
    choices = np.zeros((frames, count), np.int8)
    for frame in range(1, frames):
        options = score[states.sources] + states.costs
        choices[frame] = options.argmin(0)
        score = options.min(0) + distances[frame]
    path = np.zeros(frames, np.int64)
    path[-1] = max(0, count - ends) + int(score[-ends:].argmin())
    for frame in range(frames - 1, 0, -1):
        path[frame - 1] = states.sources[choices[frame, path[frame]], path[frame]]
    spoken = states.frames[path]
    costs = np.where(spoken >= 0, distances[np.arange(frames), path], 0.0).astype(np.float32)
    begins = np.searchsorted(states.ids[path], np.arange(len(reference.frames)))
    return Alignment(begins.astype(np.int64), spoken, costs)


def _distances(audio: AudioFrames, reference: Reference, states: _States) -> NDArray[np.float64]:
    """Distance of each frame from each state ``[F, S]``; of a pause it is small where a frame is silent."""
    ours, theirs = audio.cepstra.astype(np.float64), reference.audio.cepstra[states.frames].astype(np.float64)
    squares = np.square(ours).sum(1)[:, None] + np.square(theirs).sum(1) - 2 * ours @ theirs.T
    distances: NDArray[np.float64] = np.sqrt(np.maximum(squares, 0) / ours.shape[1])
    pause = _SILENT_FRAME_COST + _AUDIBLE_DB_COST * np.maximum(audio.above_silence_db, 0)
    distances[:, states.frames < 0] = pause[:, None]
    return distances


class VoiceMap:
    """A linear map of the features of a reference to those of recordings, from what was aligned.

    Args:
        pairs: Recordings, their references and alignments.
    """

    def __init__(self, pairs: Sequence[tuple[AudioFrames, Reference, Alignment]]) -> None:
        theirs = np.concatenate([ref.audio.cepstra[found.states[found.states >= 0]] for _, ref, found in pairs])
        ours = np.concatenate([audio.cepstra[found.states >= 0] for audio, _, found in pairs])
        inputs = _with_ones(theirs)
        square = inputs.T @ inputs + _RIDGE * np.eye(inputs.shape[1])
        self._change = np.linalg.solve(square, inputs.T @ (ours - theirs))

    def __call__(self, reference: Reference) -> Reference:
        """Return the reference as the new voice would say it."""
        features = reference.audio.cepstra
        mapped = (features + _with_ones(features) @ self._change).astype(np.float32)
        return replace(reference, audio=replace(reference.audio, cepstra=mapped))


def _with_ones(features: Floats) -> NDArray[np.float64]:
    return np.hstack([features, np.ones((len(features), 1))])


def whole_durations(begins: Ints, frames: int) -> NDArray[np.int16]:
    """Return the durations of L ids in two frames ``[L]``, at least 1 each, whose boundaries are near those given.

    Args:
        begins: Frame at which each id begins ``[L]``; the first one begins with the phrase in any case.
        frames: Length of the phrase, even and at least 2 L.
    """
    count, units = len(begins), frames // FRAMES_PER_DURATION
    slack = begins / FRAMES_PER_DURATION - np.arange(count)  # must not fall
    lower, upper = np.maximum.accumulate(slack), np.minimum.accumulate(slack[::-1])[::-1]
    starts = np.clip(np.rint((lower + upper) / 2), 0, units - count).astype(np.int64) + np.arange(count)
    starts[0] = 0
    return np.diff(np.append(starts, units)).astype(np.int16)
