"""Versions, sections and addresses of machines: numbers with points in which each part counts."""

from __future__ import annotations

import re

from tts_worker.text.reading.english.words import cardinal, number, short_number, spell
from tts_worker.text.reading.rules import reads_part


def _point_number(written: str) -> str:
    return " point ".join(map(short_number, written.split(".")))


def _version(written: str) -> str:
    return f"version {_point_number(written.lstrip('vV.'))}"


def _dotted(written: str) -> str:
    """Read "3.10.2", an IP address, or "1.000.000"."""
    parts = written.split(".")
    if [len(part) for part in parts[1:]] == [3] * (len(parts) - 1) and len(parts) < 4 and parts[0] != "0":
        return cardinal("".join(parts))
    return " dot ".join(map(spell, parts)) if len(parts) == 4 else _point_number(written)


def _tagged(written: str) -> str:
    """Read "1.0.0-rc.2"."""
    number_part, tag = written.split("-", 1)
    name, dot, count = re.fullmatch(r"([a-z]+)([.-]?)(\d*)", tag).groups()  # type: ignore[union-attr]
    version = "version " * (number_part[0] in "vV") + _point_number(number_part.lstrip("vV"))
    return (
        f"{version} dash {name.upper() if name == 'rc' else name}{' dot' * (dot == '.')} {short_number(count)}".rstrip()
    )


def _model(written: str) -> str:
    """Read "Llama-3.1-8B"."""
    name, size = written.strip("-").split("-")
    return f"{_point_number(name)} {number(size[:-1])} {size[-1]}"


read_version = reads_part(_version)
read_number = reads_part(lambda written: _point_number(written.lstrip("vV.")))
read_model = reads_part(_model)
read_tagged = reads_part(_tagged)
read_dotted = reads_part(_dotted)
read_point = reads_part(_point_number)
