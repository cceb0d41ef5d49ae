"""Spoken forms of English text: codes and phone numbers digit by digit, units, days, addresses of web pages.

Rules are patterns over whole segments, so the result does not depend on how the stream was split. Each rewrites an
exact range, which keeps word times and playback reports right. Plain numbers are left to the engine or to the
normalizer that follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from tts_worker.text.english_numbers import number_words
from tts_worker.text.language import LanguageDetector, primary_tag
from tts_worker.text.markup import letter_name
from tts_worker.text.span_rewriting import Rewrite, rewrite_plain
from tts_worker.types import Segment

_Speak = Callable[[re.Match[str]], Iterator[Rewrite]]

_CONTEXT_CHARS = 60
"""Text of earlier segments that a rule may look at: "Your code is:" may be a segment of its own."""


def spell(text: str) -> str:
    """Return ``text`` letter by letter and digit by digit; other characters make a pause."""
    groups = re.findall(r"[^\W_]+", text)
    return ", ".join(" ".join(map(_spelled, group)).rstrip(",") for group in groups)


def _spelled(char: str) -> str:
    return number_words(char) if char.isdecimal() and char.isascii() else letter_name(char)


def _digit_groups(digits: str) -> str:
    """Return a code in groups that are easy to remember: 6 digits as 3 and 3, 7 as 3 and 4, 8 as 4 and 4."""
    size = {8: 4, 10: 5, 12: 4}.get(len(digits), len(digits) if len(digits) < 6 else 3)
    starts = [start for start in range(0, len(digits), size) if len(digits) - start > 1 or not start]
    ends = [*starts[1:], len(digits)]
    return ", ".join(spell(digits[start:end]) for start, end in zip(starts, ends, strict=True))


def _number(digits: str) -> str:
    return number_words(digits) if len(digits) <= 4 else spell(digits)


def _count(digits: str, unit: str) -> str:
    return f"{_number(digits)} {unit}" + ("" if int(digits) == 1 else "s")


# -- rules ------------------------------------------------------------------------------------------------------------

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


def _version(match: re.Match[str]) -> Iterator[Rewrite]:
    yield match.start(), match.end(), "version " + _points(match["parts"])


def _dotted(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read a version without "v", or an IP address."""
    parts = match.group().split(".")
    spoken = " dot ".join(map(spell, parts)) if len(parts) == 4 else _points(match.group())
    yield match.start(), match.end(), spoken


def _points(parts: str) -> str:
    return " point ".join(map(_number, parts.split(".")))


def _reads(spoken: str) -> _Speak:
    """Return a rule that reads its group "part" as ``spoken``, or all that it matches without such a group."""

    def read(match: re.Match[str]) -> Iterator[Rewrite]:
        part = "part" if "part" in match.groupdict() else 0
        yield match.start(part), match.end(part), spoken

    return read


_FRACTIONS = {
    **{"½": "a half", "⅓": "one third", "⅔": "two thirds", "¼": "a quarter", "¾": "three quarters"},
    **{"⅛": "one eighth", "⅜": "three eighths", "⅝": "five eighths", "⅞": "seven eighths"},
}


def _fraction(match: re.Match[str]) -> Iterator[Rewrite]:
    whole = match["whole"] or ""
    joins = "" if not whole else "and " if whole.endswith(" ") else " and "
    yield match.start("part"), match.end("part"), joins + _FRACTIONS[match["part"]]


def _euros(match: re.Match[str]) -> Iterator[Rewrite]:
    """Write "1.234,56" as "1,234.56"."""
    for mark in re.finditer("[.,]", match.group()):
        place = match.start() + mark.start()
        yield place, place + 1, "," if mark.group() == "." else "."


def _hours(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "9am-5pm" as "9 AM to 5 PM"."""
    for group in ("first", "last"):
        if match[group]:
            yield match.start(group), match.end(group), " " + re.sub(r"[\s.]", "", match[group]).upper()
    yield match.start("dash"), match.end("dash"), " to "


def _duration(match: re.Match[str]) -> Iterator[Rewrite]:
    for group, unit in (("d", "day"), ("h", "hour"), ("m", "minute"), ("s", "second")):
        written = match.groupdict().get(group)
        if written:
            first = match.start(group) + len(written) - len(written.lstrip())
            joins = "" if first == match.start() or match.string[first - 1] == " " else " "
            yield first, match.end(group), joins + _count(written.strip(" dhms"), unit)


_SPOONS = {"tsp": "teaspoon", "tbsp": "tablespoon"}


def _spoon(match: re.Match[str]) -> Iterator[Rewrite]:
    singular = re.fullmatch(r"1|[½⅓⅔¼¾⅛⅜⅝⅞]|\d/\d|(?:of )?an?", match["amount"].lower())
    yield match.start("name"), match.end(), _SPOONS[match["name"].lower()] + ("" if singular else "s")


_RATES = {
    **{"yr": "year", "mo": "month", "wk": "week", "hr": "hour", "h": "hour", "min": "minute", "sec": "second"},
    **{"s": "second", "d": "day", "pp": "person"},
}


def _rate(match: re.Match[str]) -> Iterator[Rewrite]:
    unit = match["unit"]
    yield match.start("slash"), match.end(), " per " + _RATES.get(unit, unit)


_PLACES = {"apt": "apartment", "ste": "suite", "rm": "room", "ext": "extension", "bldg": "building", "fl": "floor"}


def _place(match: re.Match[str]) -> Iterator[Rewrite]:
    name = _PLACES[match["name"].lower()]
    yield match.start(), match.end(), name.capitalize() if match["name"][0].isupper() else name


_DAYS = {
    **{"mon": "Monday", "tue": "Tuesday", "tues": "Tuesday", "wed": "Wednesday", "thu": "Thursday"},
    **{"thur": "Thursday", "thurs": "Thursday", "fri": "Friday", "sat": "Saturday", "sun": "Sunday"},
}
_DAY = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)\b"
_MONTHS = {
    **{"jan": "January", "feb": "February", "mar": "March", "apr": "April", "jun": "June", "jul": "July"},
    **{"aug": "August", "sep": "September", "sept": "September", "oct": "October", "nov": "November"},
    "dec": "December",
}
_MONTH = r"(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b"


def _names(match: re.Match[str]) -> Iterator[Rewrite]:
    for name in re.finditer(rf"{_DAY}\.?| ?[-–] ?", match.group()):
        day = name.group().rstrip(".").lower()
        yield match.start() + name.start(), match.start() + name.end(), _DAYS.get(day, " to ")


def _month(match: re.Match[str]) -> Iterator[Rewrite]:
    yield match.start(), match.end(), _MONTHS[match.group().rstrip(".").lower()]


_CODE_WORDS = r"(?:[Cc]ode|CODE|PIN|[Pp]in|OTP|[Pp]ass(?:code|key|word)|ZIP|[Zz]ip)"
_ORDER_WORDS = (
    r"(?:[Oo]rder|[Cc]onfirmation|[Tt]racking|[Aa]ccount|[Ii]nvoice|[Tt]icket|[Rr]eference|[Cc]ase|[Bb]ooking"
    r"|[Rr]eservation|[Cc]ustomer|[Aa]cct\.?|[Mm]embership|[Pp]olicy|[Ss]erial|[Rr]outing|[Cc]ard|[Pp]arcel|[Tt]ransaction)"
)
_PHONE_WORDS = r"(?:[Cc]all|[Dd]ial|[Pp]hone|[Tt]ext|[Tt]el|[Ff]ax|[Nn]umber|[Hh]otline)"
_NUMBERED = r"(?:number|no\.?|ID|id|code|reference|PNR|RMA|SKU|PO)"
_IS = r"(?: is| was|:| -| =)?\s*"
_STATES = (
    "AL|AK|AZ|AR|CA|CO|CT|DC|DE|FL|GA|HI|ID|IL|IN|IA|KS|KY|LA|ME|MD|MA|MI|MN|MS|MO|MT|NE|NV|NH|NJ|NM|NY|NC|ND|OH|OK|OR"
    "|PA|RI|SC|SD|TN|TX|UT|VT|VA|WA|WV|WI|WY"
)
_FILES = (
    "py|js|jsx|ts|tsx|md|txt|pdf|json|csv|html|css|xml|yaml|yml|toml|zip|png|jpe?g|gif|mp[34]|wav|docx?|xlsx?|pptx?|exe"
    "|cpp|sql|log|ini"
)

_DURATION_H = (
    r"(?<![\w.,/])(?:(?P<d>\d{1,3} ?d) )?(?P<h>\d{1,3} ?h)(?:(?P<m> ?\d{1,2} ?m(?!\w)|(?<=h)\d\d(?!\w)))?"
    r"(?P<s> ?\d{1,2} ?s)?(?!\w)"
)

# A pattern and what is spoken, and characters of which every match has one: most texts have none of them.
_RULES: tuple[tuple[str, _Speak] | tuple[str, _Speak, str], ...] = (
    (rf"(?<![\w.+-])(?P<email>[\w.+-]{{1,64}}@{_HOSTS}[A-Za-z]{{2,12}})(?![\w@-])", _web_address, "@"),
    (
        rf"(?:https?://|(?<![\w.@/:-]))(?:www\.)?(?P<host>{_DOMAIN})(?![\w@-]|\.\w)"
        r"(?P<path>(?::\d{2,5})?(?:/[\w.~%-]*\w)*/?)(?:\?[\w=&%.+-]*[\w=])?(?:\#[\w-]+)?",
        _web_address,
        ".",
    ),
    (r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", _iban),
    (r"(?<![\w.,/-])\d{4}(?:[ -]\d{4}){3}(?![\w%]|[.-]\d)", _by_words),  # of a payment card
    (r"(?<![\w.,/-])\d{3}-\d{2}-\d{4}(?![\w%]|[.-]\d)", _by_words),  # of social security
    (r"(?P<phone>\+\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,5})(?![\w%])", _phone, "+"),
    (r"(?<![\w.,$-])(?P<phone>(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4})(?![\w%])", _phone),
    (
        rf"\b{_PHONE_WORDS}\b[^\d\n.!?]{{0,20}}"
        r"(?<![\w-])(?P<phone>\d{3}[ .-]?\d{4}|\d{3,5}[ .-]\d{5,8}|\d{8,15})(?![\w%]|[.-]\d)",
        _phone,
    ),
    (r"(?<![\w.,€£$/-])(?P<phone>0\d{2,4}[ -]\d{3,4}[ -]?\d{3,4}|0\d(?:[ .]\d\d){4})(?![\w%]|[.-]\d)", _phone),
    (r"\b(?:[Cc]all|[Dd]ial)(?:ed|ing|s)? (?P<code>[2-9]11|112|999|988)\b(?![.,:-]\d| (?:people|[a-z]+s)\b)", _code),
    (r"\b(?P<code>911)(?= (?:call|operator|dispatch|emergency))", _code),
    (
        r"\b(?:[Dd]ial|[Tt]ext)(?:ed|ing|s)?(?: [\w\"“”]+ to)? (?P<code>\d{5,6})\b"
        r"(?=[.;:!?]|,(?!\d)|$| (?:or|and|to|for|if|now|from)\b)",
        _code,
    ),
    (
        rf"\b{_CODE_WORDS}\b(?: number| code| \w+ed)?(?:,|{_IS})\s?[\"'“‘]?"
        r"(?P<code>\d{5}-\d{4}|\d{3}[ -]\d{3}|\d{4}[ -]\d{4}|\d\d-\d\d-\d\d|[A-Z]{0,2}-?\d{3,8})\b(?![.,-]\d|%)",
        _code,
    ),
    (
        r"\b(?:[Uu]se|[Ee]nter|[Tt]ype)(?: in)? (?P<code>\d{4,8}|\d{3}[ -]\d{3})"
        r"(?= (?:as your|to (?:sign|log|verify|confirm|continue|complete|finish|unlock|access|reset|activate))\b)",
        _code,
    ),
    (
        rf"\b(?:{_CODE_WORDS}|{_ORDER_WORDS}|[Pp]late|[Ll]ocator|PNR)(?: (?:number|code|reference))?{_IS}"
        r"(?P<code>(?=[A-Z]*\d)(?=\d*[A-Z])(?![A-Z]{3,}\d+\b)[A-Z\d]{5,10})\b(?![.-]\w)",
        _code,
    ),
    (
        r"\b(?:[Cc]ard|[Aa]ccount|[Nn]umber|Visa|Mastercard|Amex)\b[^\d\n.!?]{0,20}\b(?:ending|ends) (?:in |with )?"
        r"(?P<code>\d{3,4})\b(?![.,]\d|%)",
        _code,
    ),
    (r"\bISBN(?:-1[03])?:? (?P<code>\d[\d-]{8,16}[\dX])\b", _code, "I"),
    (rf"(?<=[a-z.,] )(?:{_STATES}) (?P<code>\d{{5}}(?:-\d{{4}})?)\b", _code),
    (rf"(?<![\w.,$])(?P<code>\d{{4,8}})\b(?= is (?:your|the|my) [^.!?\n]{{0,30}}{_CODE_WORDS}\b)", _code),
    (
        rf"\b(?:{_ORDER_WORDS}(?: {_NUMBERED}{_IS}|s?{_IS}(?=#|[A-Z]|\d{{5}}))|(?:ID|PNR|RMA|SKU|PO){_IS})"
        r"(?P<code>#?[A-Z]{0,4}-?\d[\dA-Z]*(?:-[\dA-Z]+){0,5})\b(?![.,]\d|%)",
        _code,
    ),
    (r"(?<![\w.,$-])[vV](?P<parts>\d{1,4}(?:\.\d{1,4}){0,4})(?![\w%]|[.,]\d)", _version),
    (r"(?<![\w.,$-])\d{1,3}(?:\.\d{1,3}){2,3}(?![\w%]|[.,]\d)", _dotted, "."),
    (r"(?<![\d/.,])24/7(?![\d/])", _reads("twenty-four seven"), "/"),
    (r"(?<![\d/.,$])\d{1,3}(?:\.\d)?(?P<part> ?/ ?)100(?![\d/%]|[.,]\d)", _reads(" out of "), "/"),
    (rf"(?<![\w./@-])[\w-]{{1,40}}(?P<part>\.)(?:{_FILES})\b(?!\.\w|[@/])", _reads(" dot "), "."),
    (
        r"\b(?:[Ss]cored?|[Rr]at(?:ed|ings?|e)|[Gg]ot|[Gg]ave|[Gg]ive|[Ss]tars?)\b[^\d\n.!?]{0,25}"
        r"\d{1,2}(?:\.\d)?(?P<part> ?/ ?)(?:5|10|20)(?![\d/])",
        _reads(" out of "),
        "/",
    ),
    (r"(?<![\d/.,$])\d\.\d(?P<part>/)(?:5|10)(?![\d/]|[.,]\d)", _reads(" out of "), "/"),
    (r"(?<![\d/.,$])\d(?P<part>/)(?:5|10)(?= stars?\b)", _reads(" out of "), "/"),
    (r"(?<![\d/.,])50/50(?![\d/])", _reads("fifty-fifty"), "/"),
    (
        r"\b(?:[Pp]ages?|[Ss]tep|[Pp]art|[Ss]lide|[Cc]hapter|[Ll]esson|[Qq]uestion) \d{1,3}"
        r"(?P<part> ?/ ?)\d{1,4}(?![\d/])",
        _reads(" of "),
        "/",
    ),
    (r"(?<![\d/.,])\d{1,2}(?P<part> )(?=(?:1/[2348]|2/3|3/[48]|[57]/8)(?![\d/]))", _reads(" and "), "/"),
    (r"(?P<whole>\d ?)?(?P<part>[½⅓⅔¼¾⅛⅜⅝⅞])", _fraction, "½⅓⅔¼¾⅛⅜⅝⅞"),
    (
        r"(?<![\w:.,/-])\d{1,2}(?::\d\d)?(?P<first> ?[AaPp]\.?[Mm]\.?)?(?P<dash> ?[-–—] ?)"
        r"\d{1,2}(?::\d\d)?(?P<last> ?[AaPp]\.?[Mm]\b)(?!\.\w)",
        _hours,
        "-–—",
    ),
    (r"(?<![\w:.,/-])\d{1,2}:\d\d(?P<part> ?[-–—] ?)(?=\d{1,2}:\d\d(?![\d:]))", _reads(" to "), ":"),
    (_DURATION_H, _duration),
    (r"(?<![\w.,/])\d{1,3}\.\d(?P<part> ?h)(?!\w|/)", _reads(" hours"), "."),
    (r"(?<![\w.,/])(?P<m>\d{1,3} ?m)(?P<s> ?\d{1,2} ?s)(?!\w)", _duration),
    (
        r"(?P<amount>\d[\d.,]*(?:(?: \d)?/\d)?|(?:\d{1,2} ?)?[½⅓⅔¼¾⅛⅜⅝⅞]|\b[Aa]|\bof an?)"
        r" ?(?P<name>[Tt]sp|[Tt]bsp)s?\b(?:\.(?= [a-z]))?",
        _spoon,
    ),
    (
        r"(?:\d ?[€£]?|\d ?(?!(?:day|night|week|month|year|hour|minute|am|pm|km)\b)[A-Za-z]{1,9})"
        r"(?P<slash> ?/ ?)"
        r"(?P<unit>yr|mo|wk|hr|h|min|sec|s|d|pp|year|month|week|day|hour|minute|second|night"
        r"|user|seat|person|piece|page|request)\b",
        _rate,
        "/",
    ),
    (r"(?:(?<=/user)|(?<=/seat)|(?<=/person))(?P<slash>/)(?P<unit>yr|mo|year|month|week|day)\b", _rate, "/"),
    (r"(?<=\d)x(?=/(?:day|wk|week|mo|month|yr|year)\b| (?:per|a) (?:day|week|month|year)\b)", _reads(" times")),
    (r"(?<![\d.,])\d{1,3}(?P<part>,)(?=\d\d ?€)", _reads("."), "€"),
    (r"(?<![\d.,])1(?P<part> ?€)(?!\d)", _reads(" euro"), "€"),
    (r"(?<=\d)(?P<part> ?€)(?!\d)", _reads(" euros"), "€"),
    (r"\b(?P<name>[Aa]pt|[Ss]te|[Rr]m|[Ee]xt|[Bb]ldg|[Ff]l)\.(?= ?(?:#?\d|[A-Z]\b))", _place),
    (r"\b(?P<name>[Aa]pt|[Ee]xt)(?= #?\d)", _place),
    (rf"\b{_DAY}\.?(?:(?:, (?:and |or )?|,? (?:and|or|to|through|&) | ?[-–/] ?){_DAY}(?:\.(?=\W*\w))?)+", _names),
    (r"\bM[-–]F\b(?=[,:]? \d)", _reads("Monday to Friday"), "-–"),
    (r"\b(?:Tues?|Thu(?:rs?)?|Fri|Wed)\b(?:\.(?=\W*\w))?", _names),
    (rf"\b(?:on|next|last|this|every|until|till|by|from|since|before|after) {_DAY}(?:\.(?=\W*\w))?", _names),
    (rf"\b{_DAY}\.?(?=[,:]? (?:at \d|\d|{_MONTH}|morning|afternoon|evening|night))", _names),
    (rf"\b{_MONTH}\.?(?= \d)|(?<=\d ){_MONTH}", _month),
    (rf"\b{_MONTH}\.? \d{{1,2}}(?P<part> ?[-–] ?)(?=\d{{1,2}}\b(?!-))", _reads(" to "), "-–"),
    (r"(?<![\w.])\d(?P<part>['′’] ?)(?=\d{1,2}[\"″”])", _reads(" foot "), "'′’"),
    (r"(?<=€)\d{1,3}(?:\.\d{3})*,\d\d(?!\d|[.,]\d)", _euros, "€"),
    (r"[~≈](?=\d)", _reads("about "), "~≈"),
    (r"(?<![\w<=>-])> ?(?=\d)", _reads("more than "), ">"),
)
_COMPILED: tuple[tuple[re.Pattern[str], _Speak, frozenset[str]], ...] = tuple(
    (re.compile(rule[0]), rule[1], frozenset(rule[2]) if len(rule) == 3 else frozenset()) for rule in _RULES
)
_MAY_APPLY = re.compile(rf"[\d½⅓⅔¼¾⅛⅜⅝⅞@]|\w\.[A-Za-z]{{2}}|\b{_DAY}|\b[Aa] [Tt]b?sp|\. [A-Z]\b")


def rewrites(text: str, first: int = 0) -> list[Rewrite]:
    """Return the disjoint rewrites of ``text`` from ``first`` on, in order; the text before it is only looked at."""
    if not _MAY_APPLY.search(text, first):
        return []
    found: list[Rewrite] = []
    present = frozenset(text)
    for pattern, speak, needs in _COMPILED:
        if needs and needs.isdisjoint(present):
            continue
        for match in pattern.finditer(text):
            for start, end, spoken in speak(match):
                if first <= start and not any(start < last and begin < end for begin, last, _ in found):
                    found.append((start, end, spoken))
    return sorted(found)


class SpokenForms:
    """Rewrites the English segments of one utterance, in order.

    Args:
        is_english: Whether a text, the next segment, is English; None if all text is.
    """

    def __init__(self, is_english: Callable[[str], bool] | None = None) -> None:
        self._is_english = is_english
        self._before = ""

    def apply(self, segment: Segment) -> Segment:
        """Return ``segment`` with its plain text rewritten; replacements of the lexicon stay unchanged."""
        text = segment.text
        before = self._before
        self._before = (before + text)[-_CONTEXT_CHARS:] + " "
        if (self._is_english is not None and not self._is_english(text)) or not _MAY_APPLY.search(text):
            return segment
        shift = len(before)

        def find(source: str) -> list[Rewrite]:
            return [(start - shift, end - shift, spoken) for start, end, spoken in rewrites(before + source, shift)]

        return rewrite_plain(segment, find)


def spoken_forms(languages: Sequence[str], explicit: str | None) -> SpokenForms | None:
    """Return the spoken forms for one utterance; None if its text cannot be English.

    Args:
        languages: Languages of the voice; empty or "mul" means any.
        explicit: Language requested by the caller.
    """
    tags = {primary_tag(explicit)} if explicit else set(map(primary_tag, languages)) or {"mul"}
    if tags == {"en"}:
        return SpokenForms()
    if not tags & {"en", "mul"}:
        return None
    detector = LanguageDetector(languages, explicit)
    return SpokenForms(lambda text: detector.detect(text) == "en")
