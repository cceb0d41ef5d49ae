"""Amounts: money, and measures with a unit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.tables import TABLES, plural
from tts_worker.text.reading.english.words import cardinal, number, split_number
from tts_worker.text.reading.rules import part_span
from tts_worker.text.span_rewriting import Rewrite

# -- money ------------------------------------------------------------------------------------------------------------


def _currency(currency: str) -> str:
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
        elif decimals is not None and len(decimals) > 2:  # "$1.2320" is a price, no measurement
            written = written.rstrip("0")
        return f"{number(written) if decimals else cardinal(whole)} {name if written == '1' else plural(name)}"
    parts = [f"{cardinal(whole)} {name if whole == '1' else plural(name)}"] if whole else []
    if hundredths := int(decimals[:2].ljust(2, "0")):
        cent = next((cent for unit, cent in TABLES["CENTS"].items() if name.endswith(unit)), "cent")
        parts.append(f"{cardinal(str(hundredths))} {cent if hundredths == 1 else plural(cent)}")
    return " and ".join(parts) or f"zero {plural(name)}"


def read_money(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "$5m" as "five million dollars", "$5-10" as "five to ten dollars", "-$5" as "minus five dollars"."""
    name = _currency(match["currency"])
    first, last = match["first"], match["last"]
    first_big = _magnitude(match["first_big"])
    magnitude = _magnitude(match["big"]) or (first_big if not last else "")
    sign = "minus " if match["sign"] else ""
    if not last:
        words = _amount(first, name, magnitude)
        if match["compound"] is not None or None not in (match["determined"], match["noun"]):
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
    name = _currency(
        symbol if symbol and match["code"][-1:] == "D" and "dollar" in _currency(symbol) else match["code"]
    )
    yield *match.span(), _amount(match["amount"], name, _magnitude(match["big"]))


# -- measures ---------------------------------------------------------------------------------------------------------

_OPENING_QUOTE = re.compile(r"(?:^|[\s(—])[\"“]")
_CLOSING_QUOTE = re.compile(r"[^\s(\d][\"”](?=[\s.,;:!?)—]|$)|\d[.,!?][\"”]")


def _unit(written: str) -> str:
    name = written.replace(".", "").replace("μ", "µ")
    return TABLES["UNITS"].get(name) or TABLES["VOLTS"][name]


def units(written: str) -> str:
    return plural(_unit(written))


def read_unit(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 km" as "five kilometers", "20-min" as "twenty minute"."""
    name, amount = _unit(match["unit"]), match["amount"]
    is_fraction = re.search(r"\d[\d.,]*\Z", amount) is None or "/" in amount
    is_mixed = is_fraction and re.search(r"\d ?\Z", match.string[: match.start()]) is not None
    is_one = amount == "1" or (is_fraction and not is_mixed) or match["join"] == "-" or match["compound"] is not None
    is_one = is_one or None not in (match["article"], match["measured"])  # "a 50 m pool"
    if not is_fraction:
        yield *match.span("amount"), number(amount)
    yield *part_span(match), name if is_one else plural(name)


def read_inches(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read 27" as inches, unless the mark closes a quotation."""
    before = match.string[: match.start()]
    if len(_OPENING_QUOTE.findall(before)) > len(_CLOSING_QUOTE.findall(before)):
        return
    amount = match["amount"]
    is_plural = amount[-1].isdecimal() and "/" not in amount and amount != "1" and not match["side"]
    side = {"W": " wide", "H": " high", "D": " deep", "L": " long"}.get((match["side"] or "").strip(), "")
    is_noun = re.match(r" (?!of\b|and\b|or\b|x\b|in\b|on\b|from\b|by\b|to\b)[a-z\d]", match.string[match.end() :])
    yield match.start("mark"), match.end(), f"{'inches' if is_plural and not is_noun else 'inch'}{side}"
