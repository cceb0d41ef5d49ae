"""The tables of English (``tables.tsv``), and what follows from them."""

from __future__ import annotations

import re
from pathlib import Path

from tts_worker.text.reading.tables import load

_ENGLISH = load(Path(__file__).with_suffix(".tsv"))
_LENGTHS = _ENGLISH["LENGTHS"]
_POWERS = {"square": ("{}²", "{}2", "{}^2", "sq {}"), "cubic": ("{}³", "{}3", "{}^3", "cu {}")}
_POWER_UNITS = {
    written.format(unit): f"{power} {name}"
    for power, forms in _POWERS.items()
    for unit, name in _LENGTHS.items()
    for written in forms
}
_UNITS = {**_LENGTHS, **_ENGLISH["UNITS"], **_POWER_UNITS}
TABLES = {
    **_ENGLISH,
    "UNITS": {name: word for name, word in _UNITS.items() if name != "in"},
    "RATES": {name: word or _UNITS.get(name, name) for name, word in _ENGLISH["RATES"].items()},
    "MONTH_WORDS": dict.fromkeys((*_ENGLISH["MONTHS"], *map(str.lower, _ENGLISH["MONTHS"].values()), "sept"), ""),
    "ALL_STATES": {**_ENGLISH["STATES"], **_ENGLISH["WORD_STATES"]},
    "STATE_NAMES": dict.fromkeys([*_ENGLISH["STATES"].values(), *_ENGLISH["WORD_STATES"].values()], ""),
}
"""What written names stand for, by the name of the table; names of a list stand for nothing."""
_PER = re.compile(" (?=(?:per|of|force|Celsius|Fahrenheit|squared)\\b)")
_UNCHANGED = ("hertz", "horsepower", "yen", "yuan", "won", "baht", "rand", "dong", "P S I", "C C", "percent")


def plural(name: str) -> str:
    """Return several of a unit or currency: "miles per hour", "square feet", "yen"."""
    head, *rest = _PER.split(name, maxsplit=1)
    if head.endswith("foot"):
        head = f"{head[:-4]}feet"
    elif head.endswith(("inch", "lux")):
        head += "es"
    elif head.endswith("penny"):
        head = "pence"
    elif not head.endswith(_UNCHANGED):
        head += "s"
    return " ".join([head, *rest])
