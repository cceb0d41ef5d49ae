"""Roman numerals after what is numbered so, and after rulers."""

from __future__ import annotations

from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.english.words import cardinal, ordinal
from tts_worker.text.reading.roman import value
from tts_worker.text.reading.rules import reads_part

_ONES = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
NUMERALS = [f"{ten}{one}" for ten in ("", "X", "XX", "XXX", "XL", "L") for one in _ONES if len(ten + one) > 1]
"""Roman numerals that are no letters."""


RULES = GRAMMAR.rules(
    r"""
@number  <NUMBERED_IN_ROMAN> part chapter art vol  \b(?:<NUMBERED_IN_ROMAN>|PART|CHAPTER|Art\.|Vol\.|Ch\.|[Vv]olume
    |[Aa]rticle
    |[Cc]hapter|[Pp]art|[Ss]ection|[Tt]ype|[Pp]hase|[Ll]evel|[Ss]tage|[Ff]actor|[Gg]rade|[Tt]ier) <ROMAN>\b(?!['’.]\w)
@ruler  <RULERS>  \b<RULERS> «I»(?=[.,;!?]|$)
@number  <SUBJECTS>
    \b<SUBJECTS> <ROMAN>(?=[.,;!?]|$
    | (?:and|or|is|was|class|exam)\b)
@ruler  <RULERS> king queen pope tsar emperor
    \b(?:<RULERS>|(?:King|Queen|Pope|Tsar|Emperor) [A-Z][a-z]+) (?=[IVX]{2})<ROMAN>\b
@number  ii iii vi vii viii xi xii xiii  \b(?!The |An |This |Your |My |Her |His |Our |New )[A-Z][a-z]+ «II|III|VI
    |VII|VIII|XI{1,3}»\b(?!['’.]\w)
@number  rocky ii iii iv vi vii viii  \b(?:Rocky|Final Fantasy|Star Wars|Episode|Olympiad|Saturn|Mark|Mk) <ROMAN>\b
    (?!['’.]\w)
""",
    {
        "number": reads_part(lambda written: cardinal(str(value(written)))),
        "ruler": reads_part(lambda written: f"the {ordinal(value(written))}"),
    },
)
