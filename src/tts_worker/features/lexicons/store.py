"""Stored lexicons: a folder ``NAME`` with a folder for each version, which holds ``lexicon.json`` and ``entries.json``.

A lexicon appears and disappears by one rename, and so does each version, so that every process that shares the
directory sees it whole or not at all, also after a crash. Who writes a version first has its number. All functions
block.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from tts_worker.atomic_files import flush_folder, hidden_path, remove_remnants, write_flushed
from tts_worker.errors import BundleError, IllegalCommand, InvalidRequest, UnknownLexicon

FORMAT = 1
MAX_VERSIONS = 100
"""Versions of a lexicon that are kept; a further one replaces the oldest."""
MAX_ABOUT_BYTES = 64 << 10
MAX_ENTRIES_BYTES = 4 << 20  # 200,000 characters, escaped, and the options of 5,000 entries
_NAME = re.compile(r"\w[\w.-]{0,63}")
_MAX_NAME_BYTES = 255  # of a file system
_ABOUT, _ENTRIES = "lexicon.json", "entries.json"
_ATTEMPTS = 16
_REMNANT_S = 3_600.0


@dataclass(frozen=True, slots=True)
class LexiconDetails:
    """What is stored about a version, besides its entries.

    Attributes:
        count: Number of entries.
        owner: Name of the API key that created the lexicon; None without one.
        created_at_s: Unix time.
        title: A name for people.
        description: What it is for.
    """

    count: int
    owner: str | None
    created_at_s: float
    title: str
    description: str


_KINDS: Mapping[str, tuple[type, ...]] = {
    "count": (int,),
    "owner": (str, type(None)),
    "created_at_s": (int, float),
    "title": (str,),
    "description": (str,),
    "format": (int,),
    "sha256": (str,),
}


def is_name(name: str) -> bool:
    """Whether a lexicon may have this name, which then cannot lead out of the directory."""
    return _NAME.fullmatch(name) is not None and len(name.encode()) <= _MAX_NAME_BYTES


class OutdatedVersion(Exception):
    """Another process has stored a version meanwhile."""


class LexiconStore:
    """A directory of lexicons. It is created with the first one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def names(self) -> list[str]:
        """Return the names of all lexicons, sorted. Raises BundleError if the directory cannot be read."""
        return sorted(name for name in _listed(self.directory) if is_name(name))

    def versions(self, name: str) -> tuple[int, ...]:
        """Return the versions of a lexicon, oldest first.

        Raises:
            UnknownLexicon: There is no such lexicon.
            InvalidRequest: The name is invalid.
            BundleError: Its folder cannot be read.
        """
        found = _listed(self._folder(name))
        versions = sorted(int(each) for each in found if each.isascii() and each.isdigit())
        if not versions:
            raise UnknownLexicon(f'there is no lexicon "{name}"')
        return tuple(versions)

    def stamp(self, name: str, version: int) -> tuple[int, int]:
        """Return what changes if another version gets this name and number. Raises UnknownLexicon."""
        try:
            status = (self._folder(name) / str(version)).stat()
        except OSError:
            raise _unknown(name, version) from None
        return status.st_mtime_ns, status.st_ino

    def details(self, name: str, version: int) -> LexiconDetails:
        """Return what is known of a version. Raises UnknownLexicon, and BundleError if a file is damaged."""
        about = self._read_about(name, version)
        return LexiconDetails(**{key: about[key] for key in LexiconDetails.__slots__})

    def entries(self, name: str, version: int) -> dict[str, Any]:
        """Return the entries of a version. Raises as ``details`` does."""
        about = self._read_about(name, version)
        raw = self._read(name, version, _ENTRIES, MAX_ENTRIES_BYTES)
        if hashlib.sha256(raw).hexdigest() != about["sha256"]:
            self._fail(name, version, "the hash of the entries does not match; it was changed or damaged")
        entries = _parsed(raw)
        if entries is None:
            self._fail(name, version, "the entries are not a JSON object")
        return entries

    def create(self, name: str, details: LexiconDetails, entries: Mapping[str, Any]) -> None:
        """Store version 1 of a new lexicon.

        Raises:
            InvalidRequest: The name is invalid.
            IllegalCommand: The name is taken.
            BundleError: It cannot be written.
        """
        folder = self._folder(name)
        partial = hidden_path(self.directory, "lexicon", "part")
        try:
            partial.mkdir(parents=True)
            _write_version(partial / "1", details, entries)
            flush_folder(partial)
            try:
                partial.rename(folder)
            except OSError:
                if folder.exists():
                    raise IllegalCommand(f'there is a lexicon "{name}" already') from None
                raise
            flush_folder(self.directory)
        except OSError as error:
            raise BundleError(f"{folder}: the lexicon cannot be written ({error.strerror})") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def add_version(
        self, name: str, details: LexiconDetails, entries: Mapping[str, Any], *, after: int | None = None
    ) -> int:
        """Store a further version and return its number.

        Args:
            name: The lexicon.
            details: Of the version.
            entries: Of the version.
            after: The version that it was made from; None for any.

        Raises:
            UnknownLexicon: There is no such lexicon.
            OutdatedVersion: There is a newer version than ``after``.
            BundleError: It cannot be written.
        """
        folder = self._folder(name)
        partial = hidden_path(folder, "version", "part")
        try:
            self.versions(name)
            _write_version(partial, details, entries)
            for _ in range(_ATTEMPTS):
                version = self.versions(name)[-1] + 1
                if after is not None and version != after + 1:
                    raise OutdatedVersion
                try:
                    partial.rename(folder / str(version))
                except OSError:
                    if not (folder / str(version)).exists():
                        raise
                    continue  # another process was faster
                flush_folder(folder)
                self._remove_oldest(name)
                return version
            raise BundleError(f"{folder}: too many processes store versions at once")
        except FileNotFoundError:
            raise UnknownLexicon(f'the lexicon "{name}" has just been deleted') from None
        except OSError as error:
            raise BundleError(f"{folder}: the lexicon cannot be written ({error.strerror})") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def delete(self, name: str) -> None:
        """Delete a lexicon. Raises UnknownLexicon, and BundleError if the directory cannot be changed."""
        self.versions(name)
        hidden = hidden_path(self.directory, "lexicon", "old")
        try:
            self._folder(name).rename(hidden)
            flush_folder(self.directory)
        except FileNotFoundError:
            raise UnknownLexicon(f'there is no lexicon "{name}"') from None
        except OSError as error:
            raise BundleError(f"{self._folder(name)}: cannot be deleted ({error.strerror})") from None
        shutil.rmtree(hidden, ignore_errors=True)

    def remove_remnants(self, now_s: float) -> None:
        """Remove what processes left that were killed while they stored or deleted. ``now_s``: Unix time."""
        for folder in (self.directory, *(self.directory / name for name in self.names())):
            remove_remnants(folder, _REMNANT_S, now_s)

    def _remove_oldest(self, name: str) -> None:
        for version in self.versions(name)[:-MAX_VERSIONS]:
            hidden = hidden_path(self._folder(name), "version", "old")
            with suppress(OSError):  # another process removes it
                (self._folder(name) / str(version)).rename(hidden)
                shutil.rmtree(hidden, ignore_errors=True)

    def _folder(self, name: str) -> Path:
        if not is_name(name):
            raise InvalidRequest(
                "a lexicon's name has up to 64 letters, digits, _ . or -, and begins with a letter or digit; at most "
                f"{_MAX_NAME_BYTES} bytes"
            )
        return self.directory / name

    def _read_about(self, name: str, version: int) -> dict[str, Any]:
        about = _parsed(self._read(name, version, _ABOUT, MAX_ABOUT_BYTES))
        if about is None or about.get("format") != FORMAT:
            self._fail(name, version, f"is not a lexicon of format {FORMAT}; it may come from a newer version")
        if about.keys() != _KINDS.keys() or any(type(about[key]) not in kinds for key, kinds in _KINDS.items()):
            self._fail(name, version, f"must have exactly these keys: {', '.join(sorted(_KINDS))}")
        return about

    def _read(self, name: str, version: int, file: str, most_bytes: int) -> bytes:
        try:
            with (self._folder(name) / str(version) / file).open("rb") as stream:
                raw = stream.read(most_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            raise _unknown(name, version) from None
        except OSError as error:
            self._fail(name, version, f"cannot be read ({error.strerror})")
        if len(raw) > most_bytes:
            self._fail(name, version, f"{file} is larger than {most_bytes} bytes")
        return raw

    def _fail(self, name: str, version: int, problem: str) -> NoReturn:
        raise BundleError(f"{self._folder(name) / str(version)}: {problem}")


def _listed(folder: Path) -> list[str]:
    """Return the names in a folder, none if there is no such folder. Raises BundleError."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read ({error.strerror})") from None


def _unknown(name: str, version: int) -> UnknownLexicon:
    return UnknownLexicon(f'there is no version {version} of the lexicon "{name}"')


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _write_version(folder: Path, details: LexiconDetails, entries: Mapping[str, Any]) -> None:
    content = json.dumps(entries).encode()
    about = {"format": FORMAT, **asdict(details), "sha256": hashlib.sha256(content).hexdigest()}
    folder.mkdir()
    write_flushed(folder / _ENTRIES, content)
    write_flushed(folder / _ABOUT, (json.dumps(about, indent=2) + "\n").encode())
    flush_folder(folder)
