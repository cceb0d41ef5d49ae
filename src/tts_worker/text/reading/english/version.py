"""Versions, sections and addresses of machines: numbers with points in which each part counts."""

from __future__ import annotations

import re

from tts_worker.text.reading.english.grammar import GRAMMAR
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


RULES = GRAMMAR.rules(
    r"""
@tagged  2+  (?<![\w.,$-])[vV]?\d{1,4}(?:\.\d{1,4}){1,3}-(?:rc|alpha|beta|dev|pre|post)(?:[.-]?\d{1,3})?\b
@number  v  \b(?:<version>s?|[Vv]er\.) «[vV]\.?\d{1,4}(?:\.\d{1,4}){0,4}»(?![\w%]|[.,]\d)
@version  v  (?<![\w.,$-])(?:v|V(?=\d{1,4}\.\d))\.?\d{1,4}(?:\.\d{1,4}){0,4}(?![\w%]|[.,]\d)
@model  b m  (?<=[a-z])-?\d{1,2}(?:\.\d{1,2})?-\d{1,4}(?:\.\d)?[BM]\b
@dotted  3+  (?<![\w.,$-])(?!\d\d\.(?:0\d|1[0-2])\.[12]\d{3}\b)\d{1,3}(?:\.\d{1,3}){2,3}(?![\w%]|[.,]\d)
@point  3+  (?<![\w.,$-])(?!\d\d\.(?:0\d|1[0-2])\.[12]\d{3}\b)\d{1,6}(?:\.\d{1,6}){2,6}(?![\w%]|[.,]\d)
@point  2+  \b(?:<version python section sections release ver clause paragraph chapter article figure>
    |<table java node ruby ubuntu debian android>|iOS|macOS|iPadOS|watchOS|PHP|Go|HTTP|USB|TLS|CUDA|PyTorch|Windows
    |Kubernetes|Postgres)
    (?:[ -]| is | to | and | or )«\d{1,4}\.\d{1,4}»(?![\w%]|[.,]\d)
""",
    {
        "version": reads_part(_version),
        "number": reads_part(lambda written: _point_number(written.lstrip("vV."))),
        "model": reads_part(_model),
        "tagged": reads_part(_tagged),
        "dotted": reads_part(_dotted),
        "point": reads_part(_point_number),
    },
)
