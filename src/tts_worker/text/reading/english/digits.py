"""Digits and serials: codes, accounts, numbers of orders, rooms and flights; sign by sign or in pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.english.telephone import word_by_word
from tts_worker.text.reading.english.words import digit_groups, pairs, spell
from tts_worker.text.reading.rules import reads_part
from tts_worker.text.span_rewriting import Rewrite


def _code(written: str) -> str:
    code = written.lstrip("#")
    if sum(map(str.isdigit, code)) < 3 and len(code) < 5:
        return ""
    return digit_groups(code) if code.isdigit() else spell(code)


def _bank_account(match: re.Match[str]) -> Iterator[Rewrite]:
    if " " in match.group():
        yield from _spelled_words(match)
    else:
        yield *match.span(), ", ".join(map(spell, re.findall(".{1,4}", match.group())))


def _spelled_words(match: re.Match[str]) -> Iterator[Rewrite]:
    for word in re.finditer(r"\S+", match.group()):
        is_last = word.end() == len(match.group())
        yield match.start() + word.start(), match.start() + word.end(), spell(word.group()) + "," * (not is_last)


def _short_numbers(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "call 911, not 411"."""
    for code in re.finditer(r"(?<![\w.,:-])(?:[2-9]11|112|999|988)\b(?![.,:-]\d| (?:people|[a-z]+s)\b)", match.group()):
        yield match.start() + code.start(), match.start() + code.end(), spell(code.group())


ACCOUNTS = GRAMMAR.rules(
    r"""
@bank account  8+  \b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b
@bank account  8+  (?<![\w-])[a-z]{2}\d{2}(?: ?[a-z]{4})?(?: ?\d{4}){2,7}(?: ?\d{1,3})?\b
@words  16+  (?<![\w.,/-])\d{4}(?:[ -]\d{4}){3}(?![\w%]|[.-]\d)
@words  9+  (?<![\w.,/$€£-])(?!\d{1,3}(?: \d{3})+(?![ \d]))(?=(?: ?\d){9})\d{2,6}(?: \d{2,6}){2,5}(?![\w%]| \d|[.,-]\d)
@words  9+  (?<![\w.,/-])\d{3}-\d{2}-\d{4}(?![\w%]|[.-]\d)
""",
    {"bank account": _bank_account, "words": word_by_word},
)
RULES = GRAMMAR.rules(
    r"""
@short numbers  3+  \b<call dial text>(?:ed|ing|s)?\b(?=[^.!?\n$]{0,60}\b\d{3}\b)[^.!?\n$]{0,64}
@code  #  (?<![\w#])#[A-Z]{1,3}-?\d{2,8}\b(?!-)
@code  3+  (?<!\d )\b«911»(?= (?:call|operator|dispatch|emergency))
@code  5+  \b<dial text>(?:ed|ing|s)?(?: [\w\"“”]+ to)? «\d{5,6}»\b
    (?=[.;:!?]|,(?!\d)|$| (?:or|and|to|for|if|now|from)\b)
@code  <CODE_WORD>  \b<CODE_WORD>\b(?: number| code| \w+ed)?(?:,|<IS>)\s?[\"'“‘]?
    «\d{5}-\d{4}|\d{3}[ -]\d{3}|\d{4}[ -]\d{4}|\d\d-\d\d-\d\d|[A-Z]{0,2}-?\d{3,8}»\b(?![.,-]\d|%)
@code  use enter type  \b<use enter type>(?: in)? «\d{4,8}|\d{3}[ -]\d{3}»
    (?= (?:as your|to (?:sign|log|verify|confirm|continue|complete|finish|unlock|access|reset|activate))\b)
@code  <CODE_WORD> <ORDER_WORD> plate locator pnr vin  \b(?:<CODE_WORD>|<ORDER_WORD>|<plate locator>|PNR|VIN)
    (?: (?:number|code|reference))?<IS>«(?=[A-Z]*\d)(?=\d*[A-Z])(?![A-Z]{3,}\d+\b)[A-Z\d]{5,17}»\b(?![.-]\w)
@code  ending ends  \b(?:<card account number phone>|SSN|Visa|Mastercard|Amex)\b[^\d\n.!?]{0,20}
    \b(?:ending|ends) (?:in |with )?«\d{3,4}»\b(?![.,]\d|%)
@code  ending ends last digits ssn  \b(?:ending in|ends in|last four(?: digits)?(?: are| is)?|last 4(?: digits)?
    (?: are| is)?
    |last 4 of your SSN: is it|SSN[^\d\n.!?]{0,20}) «\d{4}»\b(?![.,]\d|%)
@words  6+  \b(?:ID|<number code>)(?: is|:)? «\d{3,4}(?: \d{3,4}){1,4}»\b(?![.,]\d|%)
@code  <CODE_WORD>  \b<CODE_WORD>(?::| is:?) [\"'“‘]?«(?=[a-zA-Z]*\d)(?=\d*[a-zA-Z])[a-zA-Z\d]{4,16}»\b(?![.@-]\w)
@spelled  4+  \b(?=\d*[A-Z])(?=(?:[A-Z]*\d){4})[A-Z\d]{10,24}\b
@spelled  x  \b0x[0-9a-fA-F]{1,16}\b
@code  isbn  \bISBN(?:-1[03])?:? «\d[\d-]{8,16}[\dX]»\b
@code  5+  (?<=[a-z.,] )<ALL_STATES>,? «\d{5}(?:-\d{4})?»\b
@code  5+  \b<STATE_NAMES>,? «\d{5}(?:-\d{4})?»\b
@code  <CODE_WORD>  (?<![\w.,$])«\d{4,8}»\b(?= is (?:your|the|my) [^.!?\n]{0,30}<CODE_WORD>\b)
@code  <ORDER_WORD> id pnr rma sku po
    \b(?:<ORDER_WORD>(?: <NUMBERED><IS>|s?<IS>(?=#|[A-Z]|\d{5}|\d{2,4}-\d{3}))|(?:ID|PNR|RMA|SKU|PO)(?:[ ]?#
    | <NUMBERED>)?<IS>)
    «#?[A-Z]{0,4}-?\d[\dA-Z]*(?:-[\dA-Z]+){0,5}»\b(?![.,]\d|%)
@code  extension ext ssn  \b(?:<extension ext>\.?|SSN) (?:is )?«\d{3,8}»\b(?![.,]\d|%)
@units  -  \b(?:<unit room suite apt apartment>|(?:Rm|Ste|Apt)\.?) «\d{1,4}-\d{1,4}»(?![\w-])
@pairs  4+  (?<![\w.,:])«(?:[01]\d|2[0-3])00»(?= hours\b)
@pairs  3+  (?<=§ )[1-9]\d{2,3}\b(?![.,:/]\d)
@pairs  3+  \b(?:<room flight suite apartment apt unit bus train highway route interstate gate channel extension port>
    |(?:Ste|Rm|Apt|Hwy|Rte)\.?|(?!<CURRENCY_CODES>)[A-Z]{2,4}|<section form>|iPhone|Boeing|Airbus
    |Model)[ -]«[1-9]\d{2,3}»\b(?![.,:/]\d|[%°]|-\d)
    (?! (?:people|users|times|items|points|meters|<UNITS>)\b)
@spelled  3+  \b\d?[A-Z]{3}«\d{3}»\b(?![.,:/-]\d|[%°])
@pairs  3+  (?<![\w.,])«(?:240|360|480|720|1080|1440|2160|4320)»(?=[pi]\b)
@pairs  4+  \b(?:RTX|GTX|RX|Ryzen \d|Core i\d) ?«\d{4}»(?=(?:[Tt]i|XT|X|S)\b)
T I  ti  \b(?:RTX|GTX) ?\d{4} ?«[Tt]i»\b
@pairs  4+  \b[A-Z]{2,3}«[1-9]\d{3}»\b(?![.,:/-]\d|[%°])
@pairs  3+  (?<![\w.,$€£#-])«[1-9]\d{2,3}»(?= (?:(?:[NSEW]|[NS][EW])\.? )?(?:[A-Z][a-z]+\.? ){1,3}<STREET>\b)
""",
    {
        "short numbers": _short_numbers,
        "code": reads_part(_code),
        "words": word_by_word,
        "spelled": reads_part(spell),
        "pairs": reads_part(pairs),
        "units": reads_part(lambda written: ", ".join(pairs(part) for part in written.split("-"))),
    },
    ("short numbers",),
)
