"""Trained voices as a package: which are good enough, their files, and one table of figures."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tools.train.fast.evaluate import TEACHER, Figures, file_hash, predict_with, speak
from tools.train.fast.speakers import Speaker
from tools.train.text import held_out
from tts_worker.audio.loudness import lufs_for_gain
from tts_worker.engine.cpu.hibari.model import MANDARIN, HibariModel, VoiceModel
from tts_worker.errors import ConfigError
from tts_worker.types import SAMPLE_RATE_HZ
from tts_worker.voices.installed import CPU_FAMILY, CPU_GROUP, CPU_NETWORK, CPU_VECTOR, FOLDER

MAX_WER = 0.015
MAX_SYLLABLE_ERROR = 0.05
MIN_MOS = 3.7
MAX_MOS_LOSS = 0.65  # against the teacher
MIN_SIMILARITY = 0.83
MAX_PITCH_ERROR = 0.05  # of the median
MIN_PITCH_RANGE = 0.85  # of the teacher's
MAX_WORD_ERROR_MS = 80.0

SCORES = "scores"
SCORES_FILE = "scores.json"
"""Scores in the folder of a voice's training; a package has a folder ``SCORES``."""
_BEGIN, _END = "<!-- voices -->\n", "<!-- end of voices -->"
_TARGET_LUFS = -16.0
_LOUDNESS_SENTENCES = 12
_HEIGHTS = ((115.0, "low"), (150.0, "rather low"), (190.0, "medium"))
_MELODIES = ((0.8, "even: for long texts"), (1.15, "balanced: for conversations"))
_ENTRIES = re.compile(r'\A(?:\w+ = ".*"\n)*')
_LEXICON = MappingProxyType({"WebRTC": "web R T C", "LiveKit": "live kit", "nginx": "engine x"})


def shortcomings(voice: Figures, teacher: Figures) -> list[str]:
    """Return what keeps a voice from being shipped."""
    low, middle, high = voice.pitch_hz
    their_low, their_middle, their_high = teacher.pitch_hz
    pitch_range = (high - low) / (their_high - their_low)
    checks = (
        (voice.wer is None or voice.wer <= MAX_WER, f"WER {voice.wer or 0:.1%} > {MAX_WER:.1%}"),
        (
            voice.syllable_error is None or voice.syllable_error <= MAX_SYLLABLE_ERROR,
            f"{voice.syllable_error or 0:.1%} of syllables are heard as others",
        ),
        (voice.mos >= MIN_MOS, f"DistillMOS {voice.mos:.2f} < {MIN_MOS}"),
        (voice.mos >= teacher.mos - MAX_MOS_LOSS, f"DistillMOS {teacher.mos - voice.mos:.2f} below its teacher"),
        (
            voice.similarity is None or voice.similarity >= MIN_SIMILARITY,
            f"similarity {voice.similarity} < {MIN_SIMILARITY}",
        ),
        (abs(middle / their_middle - 1) <= MAX_PITCH_ERROR, f"pitch {middle} Hz, its teacher's {their_middle} Hz"),
        (pitch_range >= MIN_PITCH_RANGE, f"{pitch_range:.0%} of its teacher's range of pitch"),
        (
            voice.word_error_ms is None or voice.word_error_ms <= MAX_WORD_ERROR_MS,
            f"words {voice.word_error_ms} ms from where they are heard",
        ),
    )
    return [problem for is_met, problem in checks if not is_met]


def read_figures(scores: Mapping[str, Any]) -> dict[str, Figures]:
    """Return the figures in a file of scores, by voice."""
    known = {field.name for field in fields(Figures)}
    return {
        voice: Figures(**{**{key: values[key] for key in known & values.keys()}, "pitch_hz": tuple(values["pitch_hz"])})
        for voice, values in scores["figures"].items()
    }


def voices_table(package: Path) -> str:
    """Return the figures of all voices of a package beside those of their teachers, as a Markdown table."""
    lines = [
        "| voice | speaks | WER | DistillMOS (teacher) | similarity (teacher) | pitch | word onsets |",
        "|---|---|---|---|---|---|---|",
    ]
    for file in sorted((package / SCORES).glob("*.json")):
        name, speaker = file.stem, Speaker.of(file.stem)
        figures = read_figures(json.loads(file.read_text("utf-8")))
        voice, teacher = figures[name], figures[TEACHER]
        cells = (
            f"`{name}`, `{speaker.alias}`",
            f"{speaker.accent}, {speaker.gender}",
            _misheard(voice, teacher),
            f"{voice.mos:.2f} ± {voice.mos_error:.2f} ({teacher.mos:.2f})",
            "-" if voice.similarity is None else f"{voice.similarity:.2f} ({teacher.similarity:.2f})",
            f"{voice.pitch_hz[0]:.0f} to {voice.pitch_hz[2]:.0f} Hz",
            "-" if voice.word_error_ms is None else f"{voice.word_error_ms:.0f} ms",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _misheard(voice: Figures, teacher: Figures) -> str:
    """Say how many words are misheard, of Mandarin how many syllables, of the teacher's in brackets."""
    if voice.syllable_error is not None and teacher.syllable_error is not None:
        share = f"{voice.syllable_error:.1%} ({teacher.syllable_error:.1%}) of syllables"
    else:
        share = "-" if voice.wer is None else f"{voice.wer:.1%}"
    return share.replace("%", " %")


def write_table(package: Path) -> None:
    """Renew the table in the README of a package. Raises ConfigError if that has no place for it."""
    readme = package / "README.md"
    before, begin, rest = readme.read_text("utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ConfigError(f"{readme} has no lines {_BEGIN.strip()} and {_END}")
    readme.write_text(before + begin + voices_table(package) + end + after, "utf-8")


def add_voices(run: Path, package: Path, subpackage: str = "") -> list[str]:
    """Put the scored voices of a run into a package, beside those that have the same network, in place of others.

    The network, and for each voice its vector, metadata, scores, entry point and row in the table.

    Args:
        run: Folder of a training.
        package: Folder of the package.
        subpackage: Its part for this network, so that one package can have voices of several; empty for its own.

    Returns:
        What keeps other voices of the run out of it.

    Raises:
        ConfigError: No voice is good enough, or scores are not those of the weights.
    """
    refused: list[str] = []
    chosen: dict[str, dict[str, Any]] = {}
    for file in sorted(run.glob(f"*/{SCORES_FILE}")):
        scores = json.loads(file.read_text("utf-8"))
        name = scores["voice"]
        if scores["model_sha256"] != file_hash(run / CPU_NETWORK, file.parent / CPU_VECTOR):
            raise ConfigError(f"{file.parent}: the scores are those of another model: evaluate it again")
        figures = read_figures(scores)
        if problems := shortcomings(figures[name], figures[TEACHER]):
            refused.append(f"{name} is not good enough: {'; '.join(problems)}")
        else:
            chosen[name] = scores
    if not chosen:
        raise ConfigError("; ".join(refused) or f"{run} has no scored voices")
    (module,) = (path.parent for path in package.glob(f"*/{FOLDER}"))
    family = module / subpackage / FOLDER / CPU_FAMILY
    network = family / CPU_NETWORK
    has_this_network = network.is_file() and file_hash(network) == file_hash(run / CPU_NETWORK)
    for pack in _packs(package):
        if pack.name in chosen or (pack.parent == family and not has_this_network):
            shutil.rmtree(pack)
            (package / SCORES / f"{pack.name}.json").unlink(missing_ok=True)
    family.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / CPU_NETWORK, network)
    curves_of = "+".join(chosen) + "." if _packs(package) else ""
    if not curves_of:
        shutil.rmtree(package / SCORES)
        (package / SCORES).mkdir()
    for curve in sorted(run.glob("*.jsonl")):
        shutil.copyfile(curve, package / SCORES / (curves_of + curve.name))
    for name, scores in chosen.items():
        _add_voice(run / name, family / name, scores)
        shutil.copyfile(run / name / SCORES_FILE, package / SCORES / f"{name}.json")
    _announce(package)
    write_table(package)
    return refused


def _add_voice(run: Path, pack: Path, scores: Mapping[str, Any]) -> None:
    name = scores["voice"]
    speaker, voice = Speaker.of(name), read_figures(scores)[name]
    pack.mkdir()
    shutil.copyfile(run / CPU_VECTOR, pack / CPU_VECTOR)
    metadata = {
        "name": name,
        "family": CPU_FAMILY,
        "description": f"{speaker.accent}, {speaker.gender}, {_character(voice)}",
        "languages": [speaker.language, *(["en"] if speaker.language == MANDARIN else [])],
        "aliases": [speaker.alias],
        "loudness_lufs": round(_loudness(name, pack, scores["model_sha256"], speaker.language), 1),
        "gender": speaker.gender,
        "license": _license(name, scores["config"]),
        "model_sha256": scores["model_sha256"],
        "performance": {
            **({} if voice.wer is None else {"wer": voice.wer}),
            **({} if voice.syllable_error is None else {"syllable_error": voice.syllable_error}),
            "distillmos": voice.mos,
            "similarity_to_teacher": voice.similarity,
        },
        "lexicon": dict(_LEXICON),
    }
    from tts_worker.voices.packs import METADATA  # imported late: training needs no pydantic

    (pack / METADATA).write_text(yaml.safe_dump(metadata, sort_keys=False, width=110), "utf-8")


def _license(name: str, config: Mapping[str, Any]) -> str:
    """Say under which license a voice is; that of recordings is their owner's."""
    if name in config.get("recordings", {}):
        return "that of its recordings (trained from hibari-tts 0.2.1, Apache-2.0)"
    return f"Apache-2.0 (trained from hibari-tts 0.2.1 on speech of Kokoro's {name})"


def _character(voice: Figures) -> str:
    """Say in words how high a voice is and how much its pitch moves, and what that suits."""
    low, middle, high = voice.pitch_hz
    octaves = math.log2(high / low)
    height = next((word for limit, word in _HEIGHTS if middle < limit), "high")
    melody = next((words for limit, words in _MELODIES if octaves < limit), "lively: for greetings and short replies")
    return f"{height} ({middle:.0f} Hz), {melody}"


def _packs(package: Path) -> list[Path]:
    """Folders of the voices of a package, in the order of their names."""
    files = package.rglob(f"{FOLDER}/{CPU_FAMILY}/*/{CPU_VECTOR}")
    return sorted((file.parent for file in files), key=lambda pack: pack.name)


def _announce(package: Path) -> None:
    """Write the entry points of the voices, in place of those that are there."""
    project = package / "pyproject.toml"
    head = f'[project.entry-points."{CPU_GROUP}"]\n'
    before, _, after = project.read_text("utf-8").partition(head)
    kept = _ENTRIES.sub("", after, count=1)
    modules = {pack.name: pack.parents[2].relative_to(package).as_posix().replace("/", ".") for pack in _packs(package)}
    entries = "".join(f'{name} = "{module}"\n' for name, module in modules.items())
    project.write_text(f"{before}{head}{entries}{kept}", "utf-8")


def _loudness(name: str, pack: Path, sha256: str, language: str) -> float:
    model = HibariModel(voices=[VoiceModel(name, pack.parent / CPU_NETWORK, pack / CPU_VECTOR, sha256, language)])
    sentences = held_out(language)[:_LOUDNESS_SENTENCES]
    said = speak(model.phonemizer_of(name), predict_with(model, name), sentences)
    return lufs_for_gain(b"".join(utterance.pcm for utterance in said), SAMPLE_RATE_HZ, _TARGET_LUFS)
