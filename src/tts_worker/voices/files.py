"""Stored voices: a folder ``NAME`` with ``voice.json`` and ``voice.safetensors``, linked by a content hash.

Names, sizes, shapes, values and the hash are checked before use. A voice cannot refer to other files or run code.
A folder appears, is replaced and disappears by one rename, so that every process that shares the storage sees a whole
voice or none, also after a crash. ``details.json`` beside them describes the voice (details.py). Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from tts_worker.atomic_files import flush_folder, hidden_path, write_flushed
from tts_worker.audio.prompt import MAX_PROMPT_S
from tts_worker.errors import BundleError, IllegalCommand, InvalidRequest, UnknownVoice

FORMAT = 1
VOICES_DIR = "voices"  # within a model directory, unless another folder is named
MAX_JSON_BYTES = 64 << 10
MAX_TENSOR_BYTES = 8 << 20  # ample for 30 s of 100 mel bins
MAX_TEXT_CHARS = 4000
_MAX_ROWS = {"prompt_text_ids": 4 * MAX_TEXT_CHARS, "tokens": 3_000, "mel": 6_000, "embedding": 8_192}
"""Limits for any model: 30 s of 100 tokens and 200 mel frames per second. ``check`` applies the model's own rates."""
MAX_ABS = 1000.0  # log magnitudes and embeddings are two orders below

STYLE_SEPARATOR = "@"
"""``anna@happy`` is the style "happy" of the voice ``anna``."""
DETAILS_FILE = "details.json"
_NAME = re.compile(rf"\w[\w.-]{{0,63}}(?:{STYLE_SEPARATOR}\w[\w-]{{0,31}})?")
_MAX_NAME_BYTES = 255 - 32  # a file's name has at most 255, and that of a hidden folder has a prefix and a suffix
_HIDDEN = re.compile(rf"\.({_NAME.pattern})\.\d+\.[0-9a-f]+\.old")
_FIELDS = {"format", "family", "prompt_text", "seconds", "gain_db", "notes", "content_hash"}
_DTYPES = {
    "prompt_text_ids": np.dtype("<i4"),
    "tokens": np.dtype("<i4"),
    "mel": np.dtype("<f4"),
    "embedding": np.dtype("<f4"),
}


@dataclass(frozen=True)
class Voice:
    """A voice, as a model needs it.

    A voice without ``tokens`` has an embedding only (a speaker for which the model was tuned). One without
    ``prompt_text`` supports cross-lingual synthesis but not zero-shot continuation of its prompt.

    Attributes:
        family: Model family.
        prompt_text: Transcript of the prompt.
        prompt_text_ids: ``[P]`` transcript tokens with the language model's prefix.
        tokens: ``[N]`` speech tokens of the prompt.
        mel: ``[M, bins]`` mel frames of the prompt.
        embedding: ``[spk]`` speaker embedding.
        seconds: Duration of the prompt.
        gain_db: Level correction applied at enrollment.
        notes: Remarks of the enrollment.
    """

    family: str
    prompt_text: str
    prompt_text_ids: NDArray[np.int32]
    tokens: NDArray[np.int32]
    mel: NDArray[np.float32]
    embedding: NDArray[np.float32]
    seconds: float = 0.0
    gain_db: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def content_hash(self) -> str:
        """SHA-256 over everything that affects the audio, as 64 hex digits. The name is not included."""
        digest = hashlib.sha256()
        fields = {"family": self.family, "prompt_text": self.prompt_text}
        digest.update(json.dumps(fields, sort_keys=True).encode())
        for name, array in self.tensors().items():
            digest.update(f"{name}{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def tensors(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, little-endian and contiguous."""
        arrays = (self.prompt_text_ids, self.tokens, self.mel, self.embedding)
        return {
            name: np.ascontiguousarray(array, dtype=dtype)
            for (name, dtype), array in zip(_DTYPES.items(), arrays, strict=True)
        }

    def check(
        self,
        *,
        text_rows: int,
        speech_tokens: int,
        mel_bins: int,
        spk_size: int,
        frames_per_token: float,
        token_rate_hz: int,
        tolerance_frames: float,
    ) -> None:
        """Check the voice against the sizes of a model.

        Mel and speech tokens may differ by less than ``tolerance_frames``.

        Raises:
            BundleError: The voice does not fit, or its prompt is longer than 30 s.
        """
        if self.mel.shape[1:] != (mel_bins,) or self.embedding.shape != (spk_size,):
            raise BundleError("the voice was enrolled for a model of other dimensions; add it again with this model")
        for ids, rows in ((self.prompt_text_ids, text_rows), (self.tokens, speech_tokens)):
            if ids.size and not (int(ids.min()) >= 0 and int(ids.max()) < rows):
                raise BundleError("the voice holds ids that this model does not have; add it again with this model")
        if abs(len(self.mel) - frames_per_token * len(self.tokens)) >= tolerance_frames:
            raise BundleError("the voice's mel and speech tokens have different durations; add it again")
        seconds = len(self.mel) / (frames_per_token * token_rate_hz)
        if seconds > MAX_PROMPT_S + 1.0:  # allows for rounding up
            raise BundleError(f"the voice's prompt has {seconds:.0f} s; at most {MAX_PROMPT_S:g} s are used")


def voice_folder(root: Path, name: str) -> Path:
    """Return ``root/name``. Raises InvalidRequest for a name that could lead out of ``root``."""
    if not _NAME.fullmatch(name) or len(name.encode()) > _MAX_NAME_BYTES:
        raise InvalidRequest(
            "a voice's name has up to 64 letters, digits, _ . or -, and begins with a letter or digit; at most "
            f"{_MAX_NAME_BYTES} bytes"
        )
    return root / name


def stored_voices(root: Path) -> list[str]:
    """List the names of the complete voices below ``root``, sorted."""
    if not root.is_dir():
        return []
    return sorted(path.parent.name for path in root.glob("*/voice.json") if _NAME.fullmatch(path.parent.name))


def save_voice(root: Path, name: str, voice: Voice, *, details: bytes | None = None, replace: bool = False) -> Path:
    """Store a voice: write a new folder, flush it to the disk and rename it to its name.

    Args:
        root: Directory of voices.
        name: Name of the voice.
        voice: The voice.
        details: Content of ``details.json``.
        replace: Whether a voice of that name may exist.

    Returns:
        The voice's folder.

    Raises:
        InvalidRequest: The name is invalid.
        IllegalCommand: The name is taken.
        BundleError: A file cannot be written.
    """
    folder = voice_folder(root, name)
    about = {
        "format": FORMAT,
        "family": voice.family,
        "prompt_text": voice.prompt_text,
        "seconds": round(voice.seconds, 3),
        "gain_db": round(voice.gain_db, 2),
        "notes": list(voice.notes),
        "content_hash": voice.content_hash,
    }
    files = {
        "voice.safetensors": safetensors.numpy.save(voice.tensors()),
        "voice.json": (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode(),
    }
    if details is not None:
        files[DETAILS_FILE] = details
    partial = hidden_path(root, name, "part")
    try:
        partial.mkdir(parents=True)
        for file, body in files.items():
            write_flushed(partial / file, body)
        flush_folder(partial)
        _publish(partial, folder, replace=replace)
    except OSError as error:
        raise BundleError(f"{folder}: the voice cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def hide_voice(root: Path, name: str) -> Path:
    """Rename the folder of a stored voice so that it is not listed; return the hidden folder, to be removed.

    Until then ``load_voice`` and ``stored_hash`` find it with ``deleted``.

    Raises:
        UnknownVoice: There is no voice of that name.
        BundleError: The folder cannot be changed.
    """
    folder = voice_folder(root, name)
    if not (folder / "voice.json").is_file():
        raise UnknownVoice(f'there is no stored voice "{name}"')
    try:
        return _hide(folder)
    except FileNotFoundError:
        raise UnknownVoice(f'there is no stored voice "{name}"') from None
    except OSError as error:
        raise BundleError(f"{folder}: the voice cannot be deleted ({error.strerror})") from None


def _publish(partial: Path, folder: Path, *, replace: bool) -> None:
    """Rename ``partial`` to ``folder``. Raises IllegalCommand if there is a whole voice that must not be replaced."""
    for _ in range(2):
        if (folder / "voice.json").is_file():
            if not replace:
                raise IllegalCommand(f"there is a voice {folder.name!r} already; choose another name or replace it")
            _remove(folder)
        elif folder.is_dir():  # what an interrupted writer of an older version left
            _remove(folder)
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "voice.json").is_file():
                raise
            continue  # another process was faster
        flush_folder(folder.parent)
        return
    raise IllegalCommand(f"there is a voice {folder.name!r} already; choose another name or replace it")


def _hide(folder: Path) -> Path:
    hidden = hidden_path(folder.parent, folder.name, "old")
    folder.rename(hidden)
    with suppress(OSError):
        os.utime(hidden)  # ``remove_remnants`` counts from here
    flush_folder(folder.parent)
    return hidden


def _remove(folder: Path) -> None:
    shutil.rmtree(_hide(folder), ignore_errors=True)


def hidden_voices(root: Path) -> dict[Path, str]:
    """Return the folders that ``hide_voice`` has hidden, in any process, and the names of their voices."""
    matches = {path: _HIDDEN.fullmatch(path.name) for path in root.glob(".*.old")}
    return {path: match[1] for path, match in matches.items() if match is not None}


def _deleted_folder(root: Path, name: str) -> Path | None:
    """Return the folder that ``hide_voice`` has hidden last; None if all are removed."""
    found: dict[Path, int] = {}
    for path, hidden in hidden_voices(root).items():
        with suppress(OSError):  # removed meanwhile
            if hidden == name and (path / "voice.json").is_file():
                found[path] = path.stat().st_mtime_ns
    return max(found, key=found.__getitem__, default=None)


def load_voice(root: Path, name: str, *, deleted: bool = False) -> Voice:
    """Load and check a stored voice, or with ``deleted`` one that ``hide_voice`` has hidden.

    Raises:
        UnknownVoice: There is no voice of that name.
        BundleError: A file is malformed or does not match the hash.
    """
    folder = _folder_to_read(root, name, deleted)
    if not (folder / "voice.json").is_file():
        raise UnknownVoice(
            f'there is no stored voice "{name}"; there are: {", ".join(stored_voices(root)[:20]) or "none"}'
        )
    about_file = folder / "voice.json"
    tensor_file = folder / "voice.safetensors"
    try:
        about = _read_about(about_file)
        tensors = _read_arrays(tensor_file)
    except (OSError, BundleError):
        if folder.is_dir():
            raise
        raise UnknownVoice(f'the voice "{name}" has just been deleted') from None
    voice = Voice(
        about["family"],
        about["prompt_text"],
        tensors["prompt_text_ids"],
        tensors["tokens"],
        tensors["mel"],
        tensors["embedding"],
        about["seconds"],
        about["gain_db"],
        tuple(about["notes"]),
    )
    if voice.content_hash != about["content_hash"]:
        raise BundleError(f"{folder}: the hash does not match; the voice was changed or damaged. Add it again")
    return voice


def _folder_to_read(root: Path, name: str, deleted: bool) -> Path:
    folder = voice_folder(root, name)
    return (_deleted_folder(root, name) or folder) if deleted else folder


def stored_hash(root: Path, name: str, *, deleted: bool = False) -> str:
    """Return the content hash that a stored voice names, without reading its arrays. Raises as ``load_voice`` does."""
    file = _folder_to_read(root, name, deleted) / "voice.json"
    try:
        return str(_read_about(file)["content_hash"])
    except OSError:
        raise UnknownVoice(f'there is no stored voice "{name}"') from None


def _read_about(file: Path) -> dict[str, Any]:
    def fail(problem: str) -> NoReturn:
        raise BundleError(f"{file}: {problem}")

    with file.open("rb") as stream:
        raw = stream.read(MAX_JSON_BYTES + 1)
    if len(raw) > MAX_JSON_BYTES:
        fail(f"is larger than {MAX_JSON_BYTES} bytes")
    try:
        about = json.loads(raw)
    except (ValueError, RecursionError):
        fail("is not valid JSON")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        fail(f"is not a voice of format {FORMAT}; it may come from a newer version")
    if about.keys() != _FIELDS:
        fail(f"must have exactly these keys: {', '.join(sorted(_FIELDS))}")
    texts = (about["family"], about["prompt_text"], about["content_hash"])
    notes = about["notes"]
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT_CHARS for text in texts):
        fail("has a text field that is too long or not a string")
    if not isinstance(notes, list) or len(notes) > 20 or not all(isinstance(note, str) for note in notes):
        fail("has notes that are not a list of strings")
    for key in ("seconds", "gain_db"):
        if isinstance(about[key], bool) or not isinstance(about[key], (int, float)) or not abs(about[key]) < MAX_ABS:
            fail(f"{key} is not a number in range")
    return about


def _read_arrays(file: Path) -> Mapping[str, NDArray[Any]]:
    def fail(problem: str) -> NoReturn:
        raise BundleError(f"{file}: {problem}")

    if not file.is_file():
        fail("is missing")
    with file.open("rb") as stream:
        raw = stream.read(MAX_TENSOR_BYTES + 1)
    if len(raw) > MAX_TENSOR_BYTES:
        fail(f"is larger than {MAX_TENSOR_BYTES} bytes, too large for a voice")
    try:
        arrays = safetensors.numpy.load(raw)
    except (SafetensorError, KeyError) as error:  # KeyError: a number format that numpy does not have
        fail(f"is not a complete safetensors file ({error})")
    if {name: array.dtype for name, array in arrays.items()} != _DTYPES:
        fail(f"must hold exactly these tensors: {', '.join(f'{name} ({dtype})' for name, dtype in _DTYPES.items())}")
    for name, array in arrays.items():
        if array.ndim != (2 if name == "mel" else 1):
            fail(f"{name} has {array.ndim} dimensions")
        if len(array) > _MAX_ROWS[name]:
            fail(f"{name} has {len(array)} rows; a prompt of {MAX_PROMPT_S:g} s has at most {_MAX_ROWS[name]}")
        if array.dtype.kind == "f" and not bool((np.abs(array) < MAX_ABS).all()):
            fail(f"{name} contains NaN, infinite or out-of-range values")
    return arrays
