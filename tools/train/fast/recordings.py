"""Data of a voice from recordings with transcripts: what ``teacher`` knows of Kokoro's audio is measured.

A known voice says each transcript, and the recording is aligned to that (``alignment``). Pitch and energy are measured
in the measure of the teacher (``pitch``, ``acoustics``). Phrases get the silence around them that the teacher's have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.train.fast.acoustics import energy_of, runs
from tools.train.fast.alignment import Alignment, AudioFrames, Bools, Reference, VoiceMap, align, whole_durations
from tools.train.fast.data import Report, part_files, save_parts
from tools.train.fast.pitch import VOICED_HZ, track_pitch, voice_range_hz
from tools.train.fast.teacher import FRAMES_PER_DURATION, Ints, SpokenPhrase, load_phrases
from tools.train.manifest import ManifestRow, manifest_rows
from tts_worker.audio.decode import Recording, read_recording
from tts_worker.audio.loudness import integrated_lufs
from tts_worker.audio.pcm import Floats, fade_in, fade_out, to_pcm
from tts_worker.audio.prompt import CLIPPED, PromptFigures, judge, measure
from tts_worker.engine.cosyvoice.voices.audio_frontend import check_rate
from tts_worker.engine.cpu.hibari.model import Spectra
from tts_worker.engine.cpu.hibari.vocoder import Vocoder
from tts_worker.engine.cpu.phrases.text import Phonemizer, Phrase
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.errors import ConfigError, InvalidRequest, MissingExtra
from tts_worker.types import SAMPLE_RATE_HZ, Segment

SENTENCES = "held_out.txt"
"""In the folder of a voice: what the held-out recordings say, a line each. It is there if all data is."""

_SILENT_LUFS = -60.0
_TARGET_LUFS = -21.0  # mean of nine of Kokoro's voices
_MAX_PEAK = 0.98
_MIN_S, _MAX_S = 0.5, 30.0
_LEAST_RECORDINGS = 4
_HELD_OUT_SHARE, _HELD_OUT = 10, (2, 20)
_TEMPO = (0.6, 1.7)  # of the reference
_SNR_PERCENTILE = 75  # of the recordings
_PITCH_UTTERANCES = 20
_PAUSES = ' ;:,.!?—…"()“”'  # symbols at which a voice may pause
_PASSES = 3  # alignments, the later ones with spectra mapped to the new voice
_FITTING = 1.15  # cost relative to the median up to which recordings teach the map
_MAX_COST, _MAX_LOCAL_COST = 1.4, 1.5  # relative to the median of all recordings
_FITTING_COST, _FITTING_LOCAL_COST = 2.0, 3.0  # of what fits in any case
_LOCAL_FRAMES = 30
_LEAD_FRAMES = 8  # audio before the speech that is kept
_MAX_PAUSE_FRAMES = 56
_FADE_SAMPLES = 120
_REASONS = 5

Say = Callable[[Sequence[int], float], Spectra]
"""How a known voice says phoneme ids at a speed."""
Refused = tuple[ManifestRow, str]
"""A recording that cannot be used, and the reason."""


@dataclass(frozen=True)
class Utterance:
    """A recording that can be aligned.

    Attributes:
        row: Where it comes from.
        samples: ``[N]`` at 24 kHz, at the teacher's level.
        phrases: Phrases of the transcript.
        audio: Its frames, as they are compared.
        figures: What was measured of its speech.
    """

    row: ManifestRow
    samples: Floats
    phrases: tuple[Phrase, ...]
    audio: AudioFrames
    figures: PromptFigures

    @property
    def ids(self) -> tuple[int, ...]:
        """Phoneme ids of all phrases."""
        return tuple(symbol for phrase in self.phrases for symbol in phrase.ids)


@dataclass(frozen=True)
class Aligned:
    """An utterance with its reference, at the tempo of the recording, and the alignment.

    Attributes:
        normal_frames: Frames of each id at normal speed, of which those of the silence around phrases are used ``[L]``.
    """

    utterance: Utterance
    normal_frames: Ints
    reference: Reference
    alignment: Alignment

    @property
    def local_cost(self) -> float:
        """Mean distance of the part, 0.4 s, that fits worst."""
        costs = np.concatenate([self.alignment.costs, np.zeros(_LOCAL_FRAMES, np.float32)])
        return float(np.convolve(costs, np.full(_LOCAL_FRAMES, 1 / _LOCAL_FRAMES), "valid").max())


class RecordedData:
    """What a voice learns from, in a folder: recordings, the last of which are held out.

    Args:
        run: The folder.
        manifest: File that names recordings and transcripts.
        phonemizer: Reads the transcripts.
        speakers: Returns known voices of the same language. The one whose pitch is nearest says the transcripts.
        report: Takes a line of progress.
    """

    def __init__(
        self,
        run: Path,
        manifest: Path,
        phonemizer: Phonemizer,
        speakers: Callable[[], Mapping[str, Say]],
        *,
        report: Report,
    ) -> None:
        self._run = run
        self._manifest = manifest
        self._phonemizer = phonemizer
        self._speakers = speakers
        self._report = report

    def spoken(self, audio_s: float) -> list[SpokenPhrase]:
        """Phrases of all recordings that are not held out; ``audio_s`` limits nothing."""
        return self._parts("spoken")

    def prosody(self, audio_s: float) -> list[SpokenPhrase]:
        """The same phrases."""
        return self._parts("spoken")

    def held_out(self) -> list[SpokenPhrase]:
        """Phrases of the held-out recordings."""
        return self._parts("held_out")

    def sentences(self) -> list[str]:
        """What the held-out recordings say."""
        self._make()
        return (self._run / SENTENCES).read_text("utf-8").splitlines()

    def _parts(self, name: str) -> list[SpokenPhrase]:
        self._make()
        return load_phrases(part_files(self._run, name))

    def _make(self) -> None:
        """Align all recordings, unless that is done. Raises ConfigError if too few can be used."""
        if (self._run / SENTENCES).is_file():
            return
        rows = list(manifest_rows(self._manifest))
        aligned, refused = align_all(rows, self._phonemizer, self._speakers(), self._report)
        for row, reason in refused:
            self._report(f"left out: {row.audio.name}: {reason}")
        if len(aligned) < _LEAST_RECORDINGS:
            reasons = "".join(f"; {row.audio.name}: {reason}" for row, reason in refused[:_REASONS])
            raise ConfigError(
                f"{self._manifest}: {len(aligned)} of {len(rows)} recordings can be used, at least "
                f"{_LEAST_RECORDINGS} are needed{reasons}"
            )
        range_hz = voice_range_hz([_pitch(each.utterance) for each in aligned])
        phrases = [cut_phrases(each, range_hz) for each in aligned]
        held = min(max(len(aligned) // _HELD_OUT_SHARE, _HELD_OUT[0]), _HELD_OUT[1])
        save_parts(self._run, "spoken", [phrase for own in phrases[:-held] for phrase in own])
        save_parts(self._run, "held_out", [phrase for own in phrases[-held:] for phrase in own])
        seconds = sum(len(phrase.samples) for own in phrases[:-held] for phrase in own) / SAMPLE_RATE_HZ
        self._report(f"{len(aligned)} of {len(rows)} recordings: {seconds:.0f} s, and {held} recordings held out")
        texts = [f"{each.utterance.row.text}\n" for each in aligned[-held:]]
        (self._run / SENTENCES).write_text("".join(texts), "utf-8")


# -- recordings -------------------------------------------------------------------------------------------------------


def read_utterance(row: ManifestRow, phonemizer: Phonemizer) -> Utterance:
    """Read a recording, at the rate and the level of the teacher's audio.

    Raises:
        InvalidRequest: It cannot be read, is too long or has too little speech, or its transcript has nothing to say.
        MissingExtra: What reads or resamples it is not installed.
    """
    row = replace(row, text=" ".join(row.text.split()))
    phrases = tuple(phrase for phrase in phonemizer.phonemize(Segment.whole(row.text)) if phrase is not None)
    if not phrases:
        raise InvalidRequest("the transcript has nothing to say")
    recording = read_recording(row.audio, _MAX_S)
    clipped_share = float((np.abs(recording.samples) >= CLIPPED).mean())
    samples = _resample(recording)
    audio = AudioFrames.of(samples, max(1, len(samples) // FRAME_SAMPLES))
    first = audio.first_audible * FRAME_SAMPLES
    speech = samples[first : first + audio.speech_frames * FRAME_SAMPLES]
    if len(speech) < _MIN_S * SAMPLE_RATE_HZ:
        raise InvalidRequest(f"it has {len(speech) / SAMPLE_RATE_HZ:.1f} s of speech; at least {_MIN_S} s are needed")
    if (level := integrated_lufs(samples, SAMPLE_RATE_HZ)) < _SILENT_LUFS:
        raise InvalidRequest("it is silent or nearly silent")
    figures = replace(measure(Recording(speech, SAMPLE_RATE_HZ), row.text), clipped_share=clipped_share)
    gain = min(10 ** ((_TARGET_LUFS - level) / 20), _MAX_PEAK / float(np.abs(samples).max()))
    return Utterance(row, samples * np.float32(gain), phrases, audio, figures)


def _read_all(
    rows: Sequence[ManifestRow], phonemizer: Phonemizer, report: Report
) -> tuple[list[Utterance], list[Refused]]:
    """Read recordings and judge them. The noise is that of all: a recording without a pause does not show it."""
    refused: list[Refused] = []
    read: list[Utterance] = []
    for row in rows:
        try:
            read.append(read_utterance(row, phonemizer))
        except InvalidRequest as error:
            refused.append((row, error.message))
    snr_db = float(np.percentile([each.figures.snr_db for each in read], _SNR_PERCENTILE)) if read else 0.0
    usable: list[Utterance] = []
    notes: dict[str, str] = {}
    for utterance in read:
        try:
            found = judge(replace(utterance.figures, snr_db=snr_db))
        except InvalidRequest as error:
            refused.append((utterance.row, error.message))
            continue
        usable.append(utterance)
        notes |= {note: utterance.row.audio.name for note in found if note not in notes}
    for note, name in notes.items():
        report(f"{name}: {note}")
    return usable, refused


def _resample(recording: Recording) -> Floats:
    """Return the samples at 24 kHz, without their mean.

    Raises:
        InvalidRequest: The rate is below 16 kHz.
        MissingExtra: soxr is not installed.
    """
    try:
        import soxr
    except ImportError:
        raise MissingExtra("resampling recordings", "cosyvoice") from None
    check_rate(recording.rate_hz)
    samples = recording.samples - recording.samples.mean(dtype=np.float64).astype(np.float32)
    resampled = soxr.resample(samples, recording.rate_hz, SAMPLE_RATE_HZ, quality="VHQ")
    return np.ascontiguousarray(resampled, np.float32)


def _pitch(utterance: Utterance) -> Floats:
    return track_pitch(utterance.samples, len(utterance.samples) // FRAME_SAMPLES)


def _median_pitch_hz(curves: Sequence[Floats]) -> float:
    voiced = np.concatenate([curve[curve > VOICED_HZ] for curve in curves])
    return float(np.median(voiced)) if len(voiced) else VOICED_HZ


# -- alignment --------------------------------------------------------------------------------------------------------


def align_all(
    rows: Sequence[ManifestRow], phonemizer: Phonemizer, speakers: Mapping[str, Say], report: Report
) -> tuple[list[Aligned], list[Refused]]:
    """Align all recordings of a voice.

    Returns:
        What was aligned, and which recordings cannot be used, with the reasons.
    """
    utterances, refused = _read_all(rows, phonemizer, report)
    pairs: list[Aligned] = []
    if utterances:
        name = _nearest_speaker(utterances[:_PITCH_UTTERANCES], speakers)
        report(f"{len(utterances)} recordings are compared with {name}")
        for utterance in utterances:
            try:
                pairs.append(_first_alignment(utterance, speakers[name], phonemizer))
            except InvalidRequest as error:
                refused.append((utterance.row, error.message))
    if not pairs:
        return [], refused
    for _ in range(1, _PASSES):
        limit = _FITTING * float(np.median([pair.alignment.cost for pair in pairs]))
        mapped = VoiceMap(
            [(pair.utterance.audio, pair.reference, pair.alignment) for pair in pairs if pair.alignment.cost <= limit]
        )
        pairs = [replace(pair, alignment=align(pair.utterance.audio, mapped(pair.reference))) for pair in pairs]
    usable, unfit = _divide(pairs)
    return usable, refused + unfit


def _nearest_speaker(utterances: Sequence[Utterance], speakers: Mapping[str, Say]) -> str:
    """Return the known voice whose pitch is nearest to that of recordings."""
    pitch_hz = _median_pitch_hz([_pitch(utterance) for utterance in utterances])
    ids = utterances[0].phrases[0].ids

    def octaves(name: str) -> float:
        return abs(float(np.log2(_median_pitch_hz([speakers[name](ids, 1.0).f0_hz]) / pitch_hz)))

    return min(speakers, key=octaves)


def _first_alignment(utterance: Utterance, say: Say, phonemizer: Phonemizer) -> Aligned:
    """Align a recording to what a voice says. Raises InvalidRequest for an implausible tempo."""
    normal = reference_of(utterance, say, phonemizer, 1.0)
    tempo = int((~normal.audio.is_silent).sum()) / max(1, int((~utterance.audio.is_silent).sum()))
    if not _TEMPO[0] <= tempo <= _TEMPO[1]:
        raise InvalidRequest(f"it is spoken {tempo:.1f} times as fast as its transcript would be")
    reference = reference_of(utterance, say, phonemizer, tempo)
    return Aligned(utterance, normal.frames, reference, align(utterance.audio, reference))


def reference_of(utterance: Utterance, say: Say, phonemizer: Phonemizer, speed: float) -> Reference:
    """Return the phrases of an utterance as a voice says them at a speed."""
    spectra = [say(phrase.ids, speed) for phrase in utterance.phrases]
    waves = []
    for each in spectra:
        wave = Vocoder(each, np.random.default_rng(0)).render(each.frames)
        waves.append(np.pad(wave, (0, each.frames * FRAME_SAMPLES - len(wave))))
    frames = np.concatenate([each.duration_frames for each in spectra])
    silent = {symbol for mark in _PAUSES if (symbol := phonemizer.vocabulary.get(mark)) is not None}
    may_pause = np.isin(utterance.ids, [utterance.ids[0], *silent])  # the first id is a pad
    audio = AudioFrames.of(np.concatenate(waves), int(frames.sum()), utterance.audio.floor_db)
    return Reference(audio, frames, may_pause, np.concatenate([each.f0_hz for each in spectra]) > VOICED_HZ)


def _divide(pairs: Sequence[Aligned]) -> tuple[list[Aligned], list[Refused]]:
    """Return what fits its transcript about as well as the others, and what does not."""
    whole = float(np.median([pair.alignment.cost for pair in pairs]))
    local = float(np.median([pair.local_cost for pair in pairs]))
    usable, unfit = [], []
    for pair in pairs:
        if pair.alignment.cost > max(_MAX_COST * whole, _FITTING_COST):
            unfit.append((pair.utterance.row, "what is said is not the transcript"))
        elif pair.local_cost > max(_MAX_LOCAL_COST * local, _FITTING_LOCAL_COST):
            unfit.append((pair.utterance.row, "some words are not those of the transcript"))
        else:
            usable.append(pair)
    return usable, unfit


# -- phrases ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where a phrase is.

    Attributes:
        ids: Its ids among those of the utterance.
        heard: Those between the pads, spaces and marks at its ends.
        begin: Frame at which they begin.
        end: Frame at which they end.
    """

    ids: slice
    heard: slice
    begin: int
    end: int


def _places(aligned: Aligned) -> list[_Place]:
    begins, places, first = aligned.alignment.begins, [], 0
    for phrase in aligned.utterance.phrases:
        ids = slice(first, first + len(phrase.ids))
        heard = first + np.flatnonzero(~aligned.reference.may_pause[ids])
        start, stop = int(heard[0]), int(heard[-1]) + 1
        places.append(_Place(ids, slice(start, stop), int(begins[start]), int(begins[stop])))
        first = ids.stop
    return places


def cut_phrases(aligned: Aligned, range_hz: tuple[float, float]) -> list[SpokenPhrase]:
    """Return the phrases of a recording, with silence around them as the teacher has it.

    Args:
        aligned: The recording.
        range_hz: Pitch of the voice.
    """
    places = _places(aligned)
    gaps = [after.begin - before.end for before, after in pairwise(places)]
    rooms = [places[0].begin, *(gap // 2 for gap in gaps), len(aligned.alignment.states) - places[-1].end]
    phrases = []
    for place, before, after in zip(places, rooms[:-1], rooms[1:], strict=True):
        ids, samples, durations, is_voiced = _with_silence(aligned, place, before, after)
        frames = len(samples) // FRAME_SAMPLES
        pitch, energy = track_pitch(samples, frames, range_hz, is_voiced), energy_of(samples, frames)
        phrases.append(SpokenPhrase(ids, durations, pitch, energy, np.frombuffer(to_pcm(samples), "<i2")))
    return phrases


def _with_silence(
    aligned: Aligned, place: _Place, room_before: int, room_after: int
) -> tuple[NDArray[np.int16], Floats, NDArray[np.int16], Bools]:
    """Return the ids of a phrase, its samples, its durations, and which of its frames the reference has voiced.

    Args:
        aligned: The recording.
        place: Where the phrase is.
        room_before: Frames before it that belong to it.
        room_after: Frames after it that belong to it.
    """
    utterance, alignment = aligned.utterance, aligned.alignment
    lead = aligned.normal_frames[place.ids.start : place.heard.start]
    tail = aligned.normal_frames[place.heard.stop : place.ids.stop]
    silence, rest = int(lead.sum()), int(tail.sum())
    kept = _without_long_pauses(alignment.states, place.begin, place.end)
    heard = silence + np.searchsorted(kept, alignment.begins[place.heard])
    begins = np.concatenate([_starts(lead), heard, silence + len(kept) + _starts(tail)])
    frames = max(silence + len(kept) + rest, FRAMES_PER_DURATION * len(begins))
    frames += frames % FRAMES_PER_DURATION
    before, after = min(_LEAD_FRAMES, silence, room_before), min(rest, room_after)
    used = np.concatenate([place.begin - before + np.arange(before), kept, place.end + np.arange(after)])
    recorded = utterance.samples[: len(alignment.states) * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    wave = fade_out(fade_in(recorded[used].reshape(-1), _FADE_SAMPLES), _FADE_SAMPLES)
    samples = np.zeros(frames * FRAME_SAMPLES, np.float32)
    first = (silence - before) * FRAME_SAMPLES
    samples[first : first + len(wave)] = wave
    is_voiced = np.zeros(frames, np.bool_)
    states = alignment.states[kept]
    is_voiced[silence : silence + len(kept)] = (states >= 0) & aligned.reference.is_voiced[states]
    return np.array(utterance.ids[place.ids], np.int16), samples, whole_durations(begins, frames), is_voiced


def _starts(frames: Ints) -> Ints:
    return np.cumsum(frames) - frames


def _without_long_pauses(states: Ints, begin: int, end: int) -> Ints:
    """Return the frames from ``begin`` to ``end`` without the middle of pauses that are too long."""
    is_kept = np.ones(end - begin, np.bool_)
    for first, last in runs(states[begin:end] < 0):
        half = _MAX_PAUSE_FRAMES // 2
        is_kept[first + half : max(first + half, last - half)] = False
    return begin + np.flatnonzero(is_kept)
