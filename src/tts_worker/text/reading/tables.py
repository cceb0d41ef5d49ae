"""What is written and what is spoken for it: a file of tab-separated lines for each language.

To add a unit, a currency or an abbreviation, add a line below its heading: what is written, a tab, what is spoken. A
line without a tab is a name in a list; one that begins with "# " is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_HEADING = re.compile(r"\[([A-Z_]+)\]")


@cache
def load(file: Path) -> Mapping[str, dict[str, str]]:
    """Return the tables of a file by heading; a name of a list stands for an empty string."""
    tables: dict[str, dict[str, str]] = {}
    for line in file.read_text("utf-8").splitlines():
        if heading := _HEADING.fullmatch(line):
            table = tables.setdefault(heading[1], {})
        elif line and not line.startswith("# "):
            written, _, spoken = line.partition("\t")
            table[written] = spoken
    return tables
