"""Roman numerals after what is numbered so, and after rulers."""

from __future__ import annotations

from tts_worker.text.reading.english.words import cardinal, ordinal
from tts_worker.text.reading.roman import value
from tts_worker.text.reading.rules import reads_part

_ONES = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
NUMERALS = [f"{ten}{one}" for ten in ("", "X", "XX", "XXX", "XL", "L") for one in _ONES if len(ten + one) > 1]
"""Roman numerals that are no letters."""


read_number = reads_part(lambda written: cardinal(str(value(written))))
read_ruler = reads_part(lambda written: f"the {ordinal(value(written))}")
