"""Rules for what is read sign by sign: addresses, codes, numbers of telephones and accounts, versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tts_worker.text.english_numbers import number_words
from tts_worker.text.english_rules import (
    STATE_CODES,
    Rule,
    cased,
    reads,
    spell,
    spoken_number,
)
from tts_worker.text.span_rewriting import Rewrite


def _digit_groups(digits: str) -> str:
    """Return a code in groups that are easy to remember: 6 digits as 3 and 3, 7 as 3 and 4, 8 as 4 and 4."""
    size = {8: 4, 10: 5, 12: 4}.get(len(digits), len(digits) if len(digits) < 6 else 3)
    starts = [start for start in range(0, len(digits), size) if len(digits) - start > 1 or not start]
    ends = [*starts[1:], len(digits)]
    return ", ".join(spell(digits[start:end]) for start, end in zip(starts, ends, strict=True))


_HOSTS = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,5}"
_TOP_LEVEL = (
    r"(?:com|org|net|io|ai|dev|app|edu|gov|info|biz|tv|xyz|cloud|tech|shop|store|online|site|ly|gg|fm|sh|co|uk|us|de|fr"
    r"|eu|nl|ca|au|ch|jp|nz|ie|za|se|pl|COM|ORG|NET|IO|AI|DEV|APP)"
)
_DOMAIN = _HOSTS + _TOP_LEVEL
_ADDRESS_MARKS = {"/": "slash", ".": "dot", "-": "dash", "_": "underscore", "@": "at", "+": "plus", ":": "colon"}
_MARK_NAMES = re.compile("[" + re.escape("".join(_ADDRESS_MARKS)) + "]")


def _web_address(match: re.Match[str]) -> Iterator[Rewrite]:
    groups = match.groupdict("")
    written = groups.get("email") or groups["host"] + groups["path"].rstrip("/")
    spoken = _MARK_NAMES.sub(lambda mark: f" {_ADDRESS_MARKS[mark.group()]} ", written)
    yield match.start(), match.end(), " ".join(spoken.split())


def _by_word(match: re.Match[str], group: str | int, speak: Callable[[str], str] = spell) -> Iterator[Rewrite]:
    """Spell the words of a group; all but the last end with a pause."""
    words = list(re.finditer(r"\S+", match[group]))
    first = match.start(group)
    for word in words:
        pause = "" if word is words[-1] else ","
        yield first + word.start(), first + word.end(), speak(word.group()) + pause


def _by_words(match: re.Match[str]) -> Iterator[Rewrite]:
    return _by_word(match, 0)


def _by_code_words(match: re.Match[str]) -> Iterator[Rewrite]:
    return _by_word(match, "code")


def _spells(match: re.Match[str]) -> Iterator[Rewrite]:
    yield match.start(), match.end(), spell(match.group())


def _iban(match: re.Match[str]) -> Iterator[Rewrite]:
    if " " in match.group():
        yield from _by_word(match, 0)
    else:
        text = match.group()
        yield match.start(), match.end(), ", ".join(spell(text[place : place + 4]) for place in range(0, len(text), 4))


def _phone(match: re.Match[str]) -> Iterator[Rewrite]:
    digits = sum(map(str.isdigit, match["phone"]))
    if not 7 <= digits <= 15:
        return
    yield from _by_word(match, "phone", _phone_word)


def _phone_word(word: str) -> str:
    if word.startswith("+1") and len(word) == 12:
        return f"plus one, {_phone_word(word[2:])}"
    if word.isdigit() and len(word) == 10:
        return ", ".join((spell(word[:3]), spell(word[3:6]), spell(word[6:])))
    return ("plus " if word[0] == "+" else "") + (_digit_groups(word) if word.isdigit() else spell(word))


def _code(match: re.Match[str]) -> Iterator[Rewrite]:
    code = match["code"].lstrip("#")
    if sum(map(str.isdigit, code)) >= 3 or len(code) >= 5:
        yield match.start("code"), match.end("code"), _digit_groups(code) if code.isdigit() else spell(code)


def _letter_phone(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "1-800-FLOWERS" by its word."""
    prefix = [number_words(group) if group in ("1", "800") else spell(group) for group in match["prefix"].split("-")]
    yield match.start(), match.end(), ", ".join([*prefix, match["words"].replace("-", " ").title()])


def _version(match: re.Match[str]) -> Iterator[Rewrite]:
    yield match.start(), match.end(), "version " + _points(match["parts"])


def _dotted(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read a version without "v", or an IP address."""
    parts = match.group().split(".")
    if [len(part) for part in parts[1:]] == [3, 3]:  # "1.000.000"
        yield match.start(), match.end(), ",".join(parts)
        return
    spoken = " dot ".join(map(spell, parts)) if len(parts) == 4 else _points(match.group())
    yield match.start(), match.end(), spoken


def _points(parts: str) -> str:
    return " point ".join(map(spoken_number, parts.split(".")))


_CODE_NAMES = "code pin otp passcode passkey password zip"
_CODE_WORDS = rf"(?:{cased(_CODE_NAMES)}|CODE|PIN|OTP|ZIP)"
_ORDER_NAMES = (
    "order claim confirmation tracking account invoice ticket reference case booking reservation customer acct"
    " membership policy serial routing card parcel transaction"
)
_ORDER_WORDS = rf"{cased(_ORDER_NAMES)}\.?"
_PHONE_NAMES = "call dial phone text tel fax number hotline"
_NUMBERED = r"(?:number|no\.?|ID|id|code|reference|PNR|RMA|SKU|PO)"
_IS = r"(?: is| was|:| -| =)?\s*"
_FILES = (
    "py|js|jsx|ts|tsx|md|txt|pdf|json|csv|html|css|xml|yaml|yml|toml|zip|png|jpe?g|gif|mp[34]|wav|docx?|xlsx?|pptx?|exe"
    "|cpp|sql|log|ini"
)
_FILE_NAMES = (
    "py js jsx ts tsx md txt pdf json csv html css xml yaml yml toml zip png jpg jpeg gif mp wav doc docx xls xlsx"
    " ppt pptx exe cpp sql log ini"
)
_TOP_LEVEL_NAMES = " ".join(re.findall("[a-z]+", _TOP_LEVEL))

CODE_RULES: tuple[Rule, ...] = (
    (rf"(?<![\w.+-])(?P<email>[\w.+-]{{1,64}}@{_HOSTS}[A-Za-z]{{2,12}})(?![\w@-])", _web_address, "@"),
    (
        rf"(?:https?://|(?<![\w.@/:-]))(?:www\.)?(?P<host>{_DOMAIN})(?![\w@-]|\.\w)"
        r"(?P<path>(?::\d{2,5})?(?:/[\w.~%-]*\w)*/?)(?:\?[\w=&%.+-]*[\w=])?(?:\#[\w-]+)?",
        _web_address,
        _TOP_LEVEL_NAMES,
    ),
    (r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", _iban, "8+"),
    (r"(?<![\w-])[a-z]{2}\d{2}(?: ?[a-z]{4})?(?: ?\d{4}){2,7}(?: ?\d{1,3})?\b", _iban, "8+"),
    (r"(?<![\w.,/-])\d{4}(?:[ -]\d{4}){3}(?![\w%]|[.-]\d)", _by_words, "16+"),
    (r"(?<![\w.,/-])\d{3}-\d{2}-\d{4}(?![\w%]|[.-]\d)", _by_words, "9+"),
    (r"(?P<phone>\+\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,5})(?![\w%])", _phone, "+"),
    (r"(?<![\w.,$-])(?P<phone>(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4})(?![\w%])", _phone, "10+"),
    (
        r"(?<![\w.,$/-])(?P<prefix>(?:1-)?8(?:00|88|77|66|55|44|33))-"
        r"(?P<words>(?=[A-Z\d-]*[A-Z]{3})[A-Z\d]{2,9}(?:-[A-Z\d]{2,9})?)(?![\w-])",
        _letter_phone,
        "3+",
    ),
    (
        rf"\b{cased(_PHONE_NAMES)}\b[^\d\n.!?]{{0,20}}"
        r"(?<![\w-])(?P<phone>\d{3}[ .-]?\d{4}|\d{3,5}[ .-]\d{5,8}|\d{8,15})(?![\w%]|[.-]\d)",
        _phone,
        "7+",
    ),
    (r"(?<![\w.,€£$/-])(?P<phone>0\d{2,4}[ -]\d{3,4}[ -]?\d{3,4}|0\d(?:[ .]\d\d){4})(?![\w%]|[.-]\d)", _phone, "9+"),
    (
        r"\b(?:[Cc]all|[Dd]ial)(?:ed|ing|s)? (?P<code>[2-9]11|112|999|988)\b(?![.,:-]\d| (?:people|[a-z]+s)\b)",
        _code,
        "3+",
    ),
    (r"\b(?P<code>911)(?= (?:call|operator|dispatch|emergency))", _code, "3+"),
    (
        r"\b(?:[Dd]ial|[Tt]ext)(?:ed|ing|s)?(?: [\w\"“”]+ to)? (?P<code>\d{5,6})\b"
        r"(?=[.;:!?]|,(?!\d)|$| (?:or|and|to|for|if|now|from)\b)",
        _code,
        "5+",
    ),
    (
        rf"\b{_CODE_WORDS}\b(?: number| code| \w+ed)?(?:,|{_IS})\s?[\"'“‘]?"
        r"(?P<code>\d{5}-\d{4}|\d{3}[ -]\d{3}|\d{4}[ -]\d{4}|\d\d-\d\d-\d\d|[A-Z]{0,2}-?\d{3,8})\b(?![.,-]\d|%)",
        _code,
        _CODE_NAMES,
    ),
    (
        r"\b(?:[Uu]se|[Ee]nter|[Tt]ype)(?: in)? (?P<code>\d{4,8}|\d{3}[ -]\d{3})"
        r"(?= (?:as your|to (?:sign|log|verify|confirm|continue|complete|finish|unlock|access|reset|activate))\b)",
        _code,
        "use enter type",
    ),
    (
        rf"\b(?:{_CODE_WORDS}|{_ORDER_WORDS}|[Pp]late|[Ll]ocator|PNR)(?: (?:number|code|reference))?{_IS}"
        r"(?P<code>(?=[A-Z]*\d)(?=\d*[A-Z])(?![A-Z]{3,}\d+\b)[A-Z\d]{5,10})\b(?![.-]\w)",
        _code,
        f"{_CODE_NAMES} {_ORDER_NAMES} plate locator pnr",
    ),
    (
        r"\b(?:[Cc]ard|[Aa]ccount|[Nn]umber|[Pp]hone|SSN|Visa|Mastercard|Amex)\b[^\d\n.!?]{0,20}"
        r"\b(?:ending|ends) (?:in |with )?"
        r"(?P<code>\d{3,4})\b(?![.,]\d|%)",
        _code,
        "ending ends",
    ),
    (r"\b(?:ID|[Nn]umber|[Cc]ode)(?: is|:)? (?P<code>\d{3,4}(?: \d{3,4}){1,4})\b(?![.,]\d|%)", _by_code_words, "6+"),
    (
        rf"\b{_CODE_WORDS}(?::| is:?) [\"'“‘]?(?P<code>(?=[a-zA-Z]*\d)(?=\d*[a-zA-Z])[a-zA-Z\d]{{4,16}})\b(?![.@-]\w)",
        _code,
        _CODE_NAMES,
    ),
    (r"\b(?=\d*[A-Z])(?=(?:[A-Z]*\d){4})[A-Z\d]{10,24}\b", _spells, "4+"),
    (r"\bISBN(?:-1[03])?:? (?P<code>\d[\d-]{8,16}[\dX])\b", _code, "isbn"),
    (rf"(?<=[a-z.,] ){STATE_CODES} (?P<code>\d{{5}}(?:-\d{{4}})?)\b", _code, "5+"),
    (rf"(?<![\w.,$])(?P<code>\d{{4,8}})\b(?= is (?:your|the|my) [^.!?\n]{{0,30}}{_CODE_WORDS}\b)", _code, _CODE_NAMES),
    (
        rf"\b(?:{_ORDER_WORDS}(?: {_NUMBERED}{_IS}|s?{_IS}(?=#|[A-Z]|\d{{5}}))|(?:ID|PNR|RMA|SKU|PO){_IS})"
        r"(?P<code>#?[A-Z]{0,4}-?\d[\dA-Z]*(?:-[\dA-Z]+){0,5})\b(?![.,]\d|%)",
        _code,
        f"{_ORDER_NAMES} id pnr rma sku po",
    ),
    (r"(?<![\w.,$-])(?:v|V(?=\d{1,4}\.\d))(?P<parts>\d{1,4}(?:\.\d{1,4}){0,4})(?![\w%]|[.,]\d)", _version, "v"),
    (r"(?<![\w.,$-])\d{1,3}(?:\.\d{1,3}){2,3}(?![\w%]|[.,]\d)", _dotted, "3+"),
    (rf"(?<![\w./@-])[\w-]{{1,40}}(?P<part>\.)(?:{_FILES})\b(?!\.\w|[@/])", reads(" dot "), _FILE_NAMES),
)
