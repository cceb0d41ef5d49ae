"""Dates, days, months and years; the month first as in America, unless there is no such month."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.english.tables import TABLES
from tts_worker.text.reading.english.words import cardinal, ordinal, pairs, plural, year
from tts_worker.text.reading.rules import part_span, reads_part
from tts_worker.text.span_rewriting import Rewrite

_MONTH_NAMES = list(TABLES["MONTHS"].values())


def _month(written: str) -> str:
    return TABLES["MONTHS"][written.strip(". ").lower()[:3]]


def _day(written: str) -> str | None:
    """Return a day of a month, "5" or "5th", as an ordinal; None if no month has it."""
    day = int(written.rstrip("sthnrd"))
    return ordinal(day) if 1 <= day <= 31 else None


def _whole_year(written: str) -> str:
    """Return a year of two or four digits."""
    century = "" if len(written) != 2 else "20" if written < "50" else "19"
    return year(century + written)


def _date(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2026-11-23", "11/23/2026" and "on 10/10"."""
    groups = match.groupdict()
    if spoken := _day_of_month(int(match["m"]), int(match["d"])):
        yield *part_span(match), f"{spoken}, {_whole_year(groups['y'])}" if groups.get("y") else spoken
    if groups.get("last") and (spoken := _day_of_month(int(groups["m2"]), int(groups["d2"]))):
        yield *match.span("last"), spoken


def _day_first(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "15-01-2020" and "25.12.2026" in the order in which they are written."""
    if day := _day(match["d"]):
        month = _MONTH_NAMES[int(match["m"]) - 1]
        yield *match.span("part"), f"the {day} of {month}, {_whole_year(match['y'])}"


def _month_of_year(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span(), f"{_MONTH_NAMES[int(match['m']) - 1]} {year(match['y'])}"


def _day_of_month(month: int, day: int) -> str | None:
    if month > 12:
        month, day = day, month
    return f"{_MONTH_NAMES[month - 1]} {ordinal(day)}" if 1 <= month <= 12 and 1 <= day <= 31 else None


def _month_day(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "Jan. 5, 2027", "Jan-15-2020", "Jan 5-7" by "January fifth" and so on."""
    if (day := _day(match["d"])) is None:
        return
    yield *match.span("month"), _month(match["month"])
    yield match.end("month"), match.end("d"), f" {day}"
    if match["last"] and (last := _day(match["last"])):
        yield *match.span("dash"), " to "
        yield *match.span("last"), last
    if match["y"]:
        yield match.start("y"), match.end("y"), year(match["y"])
        if match["gap"].strip() != ",":
            yield *match.span("gap"), ", "


def _day_month(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 Feb 2027" as "the fifth of February, twenty twenty-seven"."""
    if (day := _day(match["d"])) is None:
        return
    article = "" if match["the"] else "the "
    yield *match.span("d"), f"{article}{day} of"
    yield match.end("d"), match.end("month"), f" {_month(match['month'])}"
    if match["y"]:
        yield match.end("month"), match.end("y"), f", {year(match['y'])}"


def _month_year(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span("month"), _month(match["month"])
    yield *match.span("y"), year(match["y"])


def _calendar(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "Tue-Fri" and "Jan.-Mar." as "Tuesday to Friday" and "January to March"."""
    for name in re.compile(r"[A-Za-z]\w+\.?| ?[-–/] ?").finditer(match.string, *part_span(match)):
        written = name.group().rstrip(".").lower()
        if written in ("and", "or", "to", "through"):
            continue
        mark = "," if "/" in written else "to"
        yield *name.span(), TABLES["DAYS"].get(written) or TABLES["MONTHS"].get(written[:3], mark)


def _part_of_year(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2Q22" as "the second quarter of twenty-two"."""
    article = "" if match["the"] else "the "
    part = "quarter" if match["part_of"] == "Q" else "half"
    yield *match.span("part"), f"{article}{ordinal(match['n'])} {part} of {year(match['y'])}"


def _decade(written: str) -> str:
    digits = written.lstrip("'’")[:-1].rstrip("'’")
    return plural(year(digits) if len(digits) == 4 else year(f"19{digits}").removeprefix("nineteen "))


def _between(match: re.Match[str]) -> Iterator[Rewrite]:
    for part in ("first", "last"):
        yield *match.span(part), year(match[part])


def _years(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "1939-1945" and "2019-21" as years, but not a month "2026-11"."""
    first, last = match["first"], match["last"]
    is_month = match["dash"] == "-" and len(last) == 2 and "00" < last <= "12"
    if is_month or (len(last) == 4 and int(last) <= int(first)):
        return
    yield *match.span("first"), year(first)
    yield *match.span("dash"), "to" if "/" not in match["dash"] else " "
    if len(last) == 4:
        yield *match.span("last"), year(last)


RULES = GRAMMAR.rules(
    r"""
@date  /  (?:(?<![\w/.-])|(?<=/\d\d-)|(?<=\d{4}-))«(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4}|\d\d)»(?![\w/])
@date  /  (?<![\w/.-])«(?P<y>[12]\d{3})/(?P<m>\d\d)/(?P<d>\d\d)»(?![\w/])
to  - –  \d{1,2}/\d{1,2}/\d{2,4}« ?[-–] ?»(?=\d{1,2}/)
to  - –  \d/\d{1,2}« ?[-–] ?»(?=<DAY>|[A-Z][a-z]{2,5}day)
@month of year  /  (?<![\w/.,-])(?P<m>0?[1-9]|1[0-2])/(?P<y>(?:19|20)\d\d)(?![\w/]|[.,]\d)
@date  -  (?<![\w/.-])«(?P<y>[12]\d{3})-(?P<m>\d\d)-(?P<d>\d\d)»(?:(?=T\d)|(?![\w/]|-\d))
@date  -  (?<![\w/.-])«(?P<m>0\d|1[0-2])-(?P<d>\d\d)-(?P<y>[12]\d{3})»(?![\w/]|-\d)
@day first  -  (?<![\w/.-])«(?P<d>\d\d)-(?P<m>0\d|1[0-2])-(?P<y>[12]\d{3})»(?![\w/]|-\d)
@day first  .  (?<![\w/.-])«(?P<d>\d\d)\.(?P<m>0\d|1[0-2])\.(?P<y>[12]\d{3})»(?![\w/]|-\d)
@date  /  \b(?:<DATED>|<by from since before after and to for>(?! (?:[1-7]/[2348]|\d{1,2}/16)(?!\d|\.?\W*\Z)))[ ]
    «(?P<m>\d{1,2})/(?P<d>\d{1,2})»(?:[-–](?P<last>(?P<m2>\d{1,2})/(?P<d2>\d{1,2})))?(?![\d/%]|\.\d| ?(?:of|cup
    |inch|tea|table|is|equals?|<UNITS>)\b| ?[=+−–-] ?\d|[ -]?stars?\b)
@date  /  (?<![\w/.,$])(?![1-7]/(?:[2348]|16)(?!\d))(?P<m>\d{1,2})/(?P<d>\d{1,2})
    (?=[ ](?:through|meeting|deadline|at (?:\d|noon)))
@date  /  (?<![\w/.,$])(?![1-7]/(?:[2348]|16)(?!\d))(?P<part>(?P<m>\d{1,2})/(?P<d>\d{1,2}))[-–]
    (?P<last>(?P<m2>\d{1,2})/(?P<d2>\d{1,2}))(?![\d/]| ?(?:cup|inch|mile|<UNITS>))
@date  /  \b(?:is|are|was|[Ii]t['’]s)(?: on)? «(?P<m>0?[1-9]|1[0-2])/(?P<d>1[3-57-9]|2\d|3[01])»(?![\d/%]|\.\d
    | ?[=+−–-])
@date  /  \b(?:birthday|deadline|anniversary|hers|his|mine)[^\d.!?]{0,24} «(?P<m>\d{1,2})/(?P<d>\d{1,2})»(?![\d/%]|\.\d)
@date  /  (?<=\d/\d\d[-–])(?P<m>\d{1,2})/(?P<d>\d{1,2})(?![\d/])
@date  /  (?<![\w/.,$])(?<!exp )(?<!exp\. )(?<!expires )«(?P<m>0\d|\d{1,2}(?=/0))/(?P<d>\d\d)»(?![\w/%])
to  - –  (?<![\w/])\d{1,2}/\d{1,2}« ?[-–] ?»(?=\d{1,2}/\d{1,2}(?![\w/]))
@calendar  <DAYS>  \b<DAY>\.?(?:(?:, (?:and |or )?|,? (?:and|or|to|through|&) | ?[-–/] ?)<DAY>(?:\.(?=[,;:]|\W*\w))?)+
Monday, Wednesday, Friday  /  (?<![\w/])M/W/F(?![\w/])
Tuesday, Thursday  /  (?<![\w/])Tu?/Th(?![\w/])
Monday to Friday  - –  \bM[-–]F\b(?=[,:]? \d)
@calendar  <DAYS>  \b(?:<DAY>\.|Mon)(?=,)
@calendar  <DAYS>  \b(?:Tues?|Thu(?:rs?)?|Fri|Wed|TUES?|THU(?:RS?)?|FRI|WED)\b(?:\.(?=[,;:]|\W*\w))?
@calendar  <DAYS>  \b(?:on|next|last|this|every|until|till|by|from|since|before|after)[ ]
    «(?!(?:SAT|SUN|MON|Sat|Sun)\b(?!<AFTER_DAY>))<DAY>(?:\.(?=[,;:]|\W*\w))?»
@calendar  <DAYS>  \b<DAY>\.?(?=[,:]? (?:at \d|\d{1,2}(?!\d)|<MONTHS_WRITTEN>|morning|afternoon|evening|night))
@month day  <MONTH_WORDS>  \b(?P<month><MONTHS_WRITTEN>)[ -]?(?P<d>\d{1,2}(?:st|nd|rd|th)?)\b
    (?:(?P<dash> ?[-–] ?)(?P<last>\d{1,2}(?:st|nd|rd|th)?)\b(?![:/]))?
    (?:(?P<gap>,? |-)(?P<y>[12]\d{3})\b(?! ?(?:<UNITS>|people|units)\b))?(?![:%°]|[.,]\d|-\d|/\d| ?(?:<UNITS>|am|pm)\b)
@month day  may mar  \b(?:on|by|until|since|due|from|before|after) (?P<month>may|mar) (?P<d>\d{1,2}(?:st|nd|rd|th)?)\b
    (?:(?P<dash> ?[-–] ?)(?P<last>\d{1,2})\b)?(?:(?P<gap>,? )(?P<y>[12]\d{3})\b)?(?![:%°]|[.,]\d)
@day month  <MONTH_WORDS>  (?<![\w.,$/:-])(?P<the>\b[Tt]he )?(?P<d>\d{1,2}(?:st|nd|rd|th)?) (?:of )?(?P<month>
    <MONTHS_WRITTEN>)
    (?:,? (?P<y>[12]\d{3})\b)?(?! \d{1,2}\b(?![:.]))
@month year  <MONTH_WORDS>  \b(?P<month><MONTHS_WRITTEN>),? (?:of )?(?P<y>[12]\d{3})\b(?![.,]\d| ?(?:<UNITS>|people
    |units)\b)
@month  <MONTHS> sept  \b<MONTH>(?:\.(?=[ ,]))?(?= \d{1,2}\b)
@calendar  - –  \b<MONTH>\.? ?[-–] ?<MONTH>(?:\.(?=[,;:]|\W*\w))?
@month  <MONTHS> sept  \b<in since until early late mid last next this>[ -]
    «(?:Jan|Feb|Apr|Aug|Sept?|Oct|Nov|Dec)\b(?:\.(?=,| [a-z\d]))?»(?! [A-Z])
to  - –  \d0s«[-–]»(?=\d)
to  <MONTH_WORDS>  \b[A-Z][a-z]+ \d{1,2}« ?[-–] ?»(?=<MONTHS_WRITTEN> \d)
@decade  s  (?<![\w.,$])(?:1\d\d0['’]?s|20\d0s|['’][1-9]0s)\b
@short year  2+  (?<![\w.,])['’]\d\d(?![\w'’/%°]|[.,]\d|-\d| ?(?:<UNITS>|<CURRENCY_CODES>|[$€£₹¥%])(?!\w))
@decade  s  (?<=\b[Tt]he )[2-9]0s\b
@years  - –  (?<![\w.,$€£/:-])(?P<first>1[1-9]\d\d|20\d\d)(?P<dash> ?[-–] ?)(?P<last>(?:1[1-9]|20)\d\d|\d\d)
    (?![\w%/-]|[.,]\d)
@years  /  (?<![\w.,$€£/:-])(?P<first>1[1-9]\d\d|20\d\d)(?P<dash>/)(?P<last>(?:1[1-9]|20)\d\d|\d\d)(?![\w%/-]|[.,]\d)
@year  4+  (?<![\w.,$€£#/:-])(?:1[0-9]|20)\d\d(?=,? ?(?:A\.?D|B\.?C|C\.?E|BCE)\b)
@year  4+
    \b<in since by of from until till before after year during around circa summer winter spring fall autumn late early>
    (?: early| late| about| the year)? «(?:1[3-9]|20)\d\d»(?![\w%°/-]|[.,:]\d| ?(?:<UNITS>|[VWA])\b)
    (?! (?:or|to|and) (?:more|fewer|less|\d{1,3}\b)| (?:hundred|thousand|million|billion)| [a-z]{2,}s\b(?<!was)
    (?<!is)(?<!has))
@year  4+  \b(?:[Ii]t (?:was|is)|[Ss]ummer of|[Cc]lass of|[Ff]ounded|[Ee]stablished|[Bb]orn|[Cc]opyright|©|[Cc]irca
    |[Cc]a\.|back in) (?:in )?
    «(?:1[3-9]|20)\d\d»(?![\w%°/-]|[.,:]\d| ?(?:<UNITS>|[VWA])\b| [a-z]{2,}s\b)
@between  4+  \b(?:[Bb]etween|[Ff]rom) (?P<first>(?:1[5-9]|20)\d\d) (?:and|to|until|through)[ ]
    (?P<last>(?:1[5-9]|20)\d\d)\b(?! [a-z]{2,}s\b)
@part of year  q h  (?P<the>\b[Tt]he )?(?<![\w.,])
    «(?P<n>[1-4])(?P<part_of>Q|(?<=[12])H)(?P<y>(?:20)?\d\d)»(?![\w%]|[.,:/-]\d)
@year  q h fy  \b(?:[QH]\d|FY) «(?:19|20)\d\d»\b
@year  4+  (?<=\()(?:1[5-9]|20)\d\d(?=\))
@year  4+  \b(?:[Cc]\.|[Ee]st\.) «(?:1\d|20)\d\d»\b
@year  4+  \b(?:in|year|AD) «1[0-2]\d\d»(?=[.,;:!?)](?!\d)|$| (?:and|the|when|was)\b)
@year  4+  \b[A-Z][a-z]+ «(?:19|20)\d\d»(?=[.,;!?)\"”](?!\d)|$)
@year  4+  \A(?:19|20)\d\d(?=[.!?]?\Z)
@pairs  4+  \A(?:1[1-9]|2\d)\d\d(?=[.!?]?\Z)
@year  4+  (?<![\w.,$€£#/:-])(?:19|20)\d\d(?= (?:was|will|is|has|had|saw|marked|election|season|budget|model|census
    |report|edition)\b)
@year  4+  \b(?:[Tt]he|[Tt]his|[Yy]our|[Mm]y|[Aa]) «(?:19|20)\d\d»(?= (?!(?:<UNITS>)\b)(?:[A-Z]|[a-z]+(?<!s)\b))
@year  4+  \b[A-Z][a-z]+day,? [A-Z][a-z]+ [a-z-]+, «(?:19|20)\d\d»\b
""",
    {
        "date": _date,
        "month of year": _month_of_year,
        "part of year": _part_of_year,
        "between": _between,
        "day first": _day_first,
        "month day": _month_day,
        "day month": _day_month,
        "month year": _month_year,
        "month": reads_part(_month),
        "calendar": _calendar,
        "decade": reads_part(_decade),
        "year": reads_part(year),
        "pairs": reads_part(pairs),
        "short year": reads_part(
            lambda written: cardinal(written[1:]) if written[1] != "0" else f"oh {cardinal(written[2])}"
        ),
        "years": _years,
    },
    ("month day", "day month", "month year"),
)
