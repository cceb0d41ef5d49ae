"""Money: amounts with a sign or code of a currency before or behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.tables import TABLES, plural
from tts_worker.text.reading.english.words import cardinal, number, split_number
from tts_worker.text.span_rewriting import Rewrite

_DETERMINER = re.compile(
    r"\b(?:[Aa]n?|[Tt]he|[Yy]our|[Mm]y|[Oo]ur|[Hh]is|[Hh]er|[Tt]heir|[Tt]h(?:is|at)|[Ee]ach|[Ee]very"
    r"|[Aa]nother|[Oo]ne|new) \Z"
)
_NOUN = re.compile(
    r"[ ](?!(?:a|an|about|after|and|are|at|before|between|by|each|extra|for|from|if|in|is|it|less|more|of|off|on|or"
    r"|over|per|plus|she|so|than|that|the|then|they|this|to|today|tomorrow|total|until|was|we|were|which|while|will|with|worth"
    r"|you|your|he|I|back|minus|now|again|when|owed|due|paid|spent|left|has|had|goes|came)\b)(?:[a-z]|[A-Z]{2,}\b)|-[a-z]"
)
"""What follows an amount that is an adjective: "a $5 fee"; a noun, or an adjective before it."""


def _name(currency: str) -> str:
    name = " ".join(currency.split())
    return TABLES["CURRENCIES"].get(name) or TABLES["CURRENCY_CODES"][name]


def _magnitude(written: str | None) -> str:
    """Return "thousand" for "k"; nothing for None."""
    name = (written or "").strip()
    return TABLES["MAGNITUDES"].get(name.lower(), name)


def _amount(written: str, name: str, magnitude: str = "") -> str:
    """Return an amount: "twenty dollars and fifty cents", "one point two three four dollars"."""
    written = written.removesuffix(",-")
    whole, decimals = split_number(written)
    whole = whole.lstrip("0")
    if magnitude:
        return f"{number(written)} {magnitude} {plural(name)}"
    has_cents = decimals is not None and len(decimals.rstrip("0")) <= 2 and name not in TABLES["NO_CENTS"]
    if decimals is None and re.fullmatch(r"[1-9][1-9]00", written):  # "$1500", but not "$1,500"
        return f"{cardinal(written[:2])} hundred {plural(name)}"
    if decimals is None or not has_cents:
        if decimals is not None and not decimals.strip("0"):
            written, decimals = whole or "0", None
        return f"{number(written) if decimals else cardinal(whole)} {name if written == '1' else plural(name)}"
    parts = [f"{cardinal(whole)} {name if whole == '1' else plural(name)}"] if whole else []
    if hundredths := int(decimals[:2].ljust(2, "0")):
        cent = next((cent for unit, cent in TABLES["CENTS"].items() if name.endswith(unit)), "cent")
        parts.append(f"{cardinal(str(hundredths))} {cent if hundredths == 1 else plural(cent)}")
    return " and ".join(parts) or f"zero {plural(name)}"


def read_money(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "$5m" as "five million dollars", "$5-10" as "five to ten dollars", "-$5" as "minus five dollars"."""
    name = _name(match["currency"])
    first, last = match["first"], match["last"]
    first_big = _magnitude(match["first_big"])
    magnitude = _magnitude(match["big"]) or (first_big if not last else "")
    sign = "minus " if match["sign"] else ""
    if not last:
        words = _amount(first, name, magnitude)
        is_adjective = _DETERMINER.search(match.string, 0, match.start()) and _NOUN.match(match.string, match.end())
        if is_adjective or re.match("-[a-z]", match.string[match.end() :]):
            several = plural(name)
            words = words.removesuffix(several) + name if words.endswith(several) else words  # "a five dollar fee"
        yield *match.span(), sign + words
        return
    has_one_unit = not first_big and (magnitude or not re.search("[.,]", first + last))
    if has_one_unit:
        words = f"{number(first)} to {_amount(last, name, magnitude)}"
    else:
        words = f"{_amount(first, name, first_big)} to {_amount(last, name, magnitude)}"
    yield *match.span(), sign + words


def read_behind(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "20 EUR", "12,50 €" and "3 million CHF"; "$20 USD" has its currency twice."""
    symbol = match["symbol"]
    name = _name(symbol if symbol and match["code"][-1:] == "D" and "dollar" in _name(symbol) else match["code"])
    yield *match.span(), _amount(match["amount"], name, _magnitude(match["big"]))


def read_cents(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span(), f"{number(match['amount'])} {'cent' if match['amount'] == '1' else 'cents'}"
