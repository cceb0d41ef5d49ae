"""A small language for readings: which tokens a pattern finds, and which words are spoken for them.

A rule stands on a line that begins at the margin; its pattern may go on in indented lines. Two spaces separate three
parts:

- What is spoken for the part of the match in guillemets, or for all of it: words; what a table has for it or for the
  group "name", ``<STREETS>``; what a function returns for it, ``{year}``, or for a group, ``{y:year}``; or ``_`` for a
  space. ``month={month}; y={year}`` speaks for those of two groups that match. A rule does not apply where a function
  returns nothing. ``@month day`` leaves all of it to the function ``read_month_day``, which gets the match.
- What every match has one of: words in small letters, signs, the words of ``<STREETS>``, or as many digits as "3+"
  says; "SIGN" is any that is no punctuation. "DIGIT" is one thing more that every match has. Most segments have little
  of it, so that few patterns are searched for. "ACROSS" means that a match may begin in the segment before.
- The pattern. In it ``<STREETS>`` is one of the names of a table or the pattern of a definition, and ``<call dial>`` is
  one of these words, which may begin with a capital.

A line that begins with "# " is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tts_worker.text.span_rewriting import Rewrite
from tts_worker.text.tables import named_patterns, paragraphs

Read = Callable[[re.Match[str]], Iterator[Rewrite]]
"""Yields what is spoken for ranges of a match."""
Table = Mapping[str, str] | Sequence[str]


class Rule(NamedTuple):
    """A pattern and what is spoken for its matches.

    Attributes:
        pattern: What it finds.
        read: What is spoken for a match.
        needs: What every match has one of, see ``features``.
        has_digit: Whether every match has a digit.
        looks_back: Whether a match may begin before the token, with words that decide how it is read.
    """

    pattern: re.Pattern[str]
    read: Read
    needs: frozenset[str | int]
    has_digit: bool
    looks_back: bool


_WORD = re.compile("[a-z]+")
_SIGN = re.compile(r"[^A-Za-z\s.]|\.(?=\S)")
_MARK = re.compile(r"[^A-Za-z\s.,;:!?'’()]|\.(?=\S)")
"""What a text has to which a rule without words applies."""
_PUNCTUATION = frozenset(".,;:!?…—“”\"()'’‘-–«»0123456789")
_DIGIT = re.compile(r"\d")
_GROUP = re.compile(r"(\w+)=([^;]*)(?:; |\Z)")
_TABLE = "([A-Z_]+)"
_SLOT = re.compile(rf"\{{(?:(\w+):)?([a-z ]+)\}}|<{_TABLE}>")
_NOTHING = "\0"
_BEGINS_WITH_PART = re.compile(r"(?:\(\?<[!=](?:[^()]|\\[()])*\)|\\b)*\(\?P<part>")
_BEFORE_WORDS = re.compile(r"[\w$€£¥¢%#°.,;:!?)\]]\Z")
_ENDS = frozenset(("", *" .,;:!?)…\n"))
_AFTER_WORDS = re.compile(r"[\w$€£¥¢₹%#°+§±=~<>&@√]")


def part_span(match: re.Match[str]) -> tuple[int, int]:
    """Return the range of the group "part", or of all that a rule matches without such a group."""
    return match.span("part" if "part" in match.re.groupindex else 0)


def template(spoken: str, forms: Mapping[str, Any]) -> Callable[[re.Match[str], tuple[int, int]], str | None]:
    """Return what fills in the words of a rule, for a match and a range of its text; that returns None for nothing.

    Args:
        spoken: The words.
        forms: The functions that they name, and those that look a name up in a table.
    """
    if spoken == "_":
        return lambda match, span: " "
    names = [form.replace(" ", "_") or table for _, form, table in _SLOT.findall(spoken)]
    reads = {name: forms[name] for name in names}

    def fill(match: re.Match[str], span: tuple[int, int]) -> str | None:
        def speak(slot: re.Match[str]) -> str:
            group, form, table = slot.groups()
            group = "name" if table and "name" in match.re.groupindex else group
            written = match[int(group) if group.isdecimal() else group] if group else match.string[slice(*span)]
            return reads[table or form.replace(" ", "_")](written) or _NOTHING

        words = _SLOT.sub(speak, spoken)
        return None if _NOTHING in words else words

    return fill


class Grammar:
    """Makes rules from text.

    Args:
        tables: What written names stand for, by the name of the table; or only names.
        definitions: Lines ``NAME = pattern``, which go on as rules do.
        readings: The functions that rules name.
    """

    def __init__(self, tables: Mapping[str, Table], definitions: str, readings: Mapping[str, Any]) -> None:
        self._tables = tables
        self._readings = readings
        self._patterns = {name: _alternatives(table) for name, table in tables.items()}
        self._words = {name: {_rarest(word.lower()) for word in table} for name, table in tables.items()}
        for name, pattern in named_patterns(definitions).items():
            self._patterns[name] = self.pattern(pattern)
            self._words[name] = set(re.findall("[a-z]+", pattern.lower()))

    def pattern(self, written: str) -> str:
        """Return a pattern with its tables, definitions and words filled in."""
        joined = re.sub("\n +", "", written).replace("«", "(?P<part>").replace("»", ")")
        return re.sub("(?<!P)<([A-Za-z_ ]+)>", lambda name: self._patterns.get(name[1]) or _one_of(name[1]), joined)

    def rules(self, written: str) -> tuple[Rule, ...]:
        """Return the rules of a text."""
        rules: list[Rule] = []
        for line in paragraphs(written):
            spoken, needs, pattern = re.split("  +|\n +", line, maxsplit=2)
            read = self._reading(f"read {spoken[1:]}") if spoken[0] == "@" else self._reads(spoken)
            compiled = re.compile(self.pattern(pattern))
            required = frozenset(self._requirements(needs))
            looks_back = "part" in compiled.groupindex and not _BEGINS_WITH_PART.match(compiled.pattern)
            flags = "DIGIT" in required, looks_back or "ACROSS" in required
            rules.append(Rule(compiled, read, required - {"DIGIT", "ACROSS"}, *flags))
        return tuple(rules)

    def _requirements(self, column: str) -> Iterator[str | int]:
        for need in column.split():
            if need[1:] and need[-1] in ">+":
                yield from self._words[need[1:-1]] if need[0] == "<" else [int(need[:-1])]
            else:
                yield need

    def _reading(self, name: str) -> Any:
        return self._readings[name.replace(" ", "_")]

    def _reads(self, spoken: str) -> Read:
        """Return a function that reads the part of a match, or some of its groups, as ``spoken`` says."""
        forms = dict(self._readings)
        for table in re.findall(rf"<{_TABLE}>", spoken):
            forms[table] = partial(self._look_up, table)
        groups = [(group, template(words, forms)) for group, words in _GROUP.findall(spoken) or [("", spoken)]]

        def speak(match: re.Match[str]) -> Iterator[Rewrite]:
            found: list[Rewrite] = []
            for group, words in groups:
                span = match.span(group) if group else part_span(match)
                if span[0] < 0:
                    continue
                if (said := words(match, span)) is None:
                    return
                found.append((*span, said))
            yield from found

        return speak

    def _look_up(self, table: str, written: str) -> str:
        """Return what a name stands for; a period after it or a capital may be missing from the table."""
        names = self._tables[table]
        assert isinstance(names, Mapping)
        name = written.strip()
        word = name.rstrip(".")
        found = names.get(name) or names.get(word) or names.get(word.capitalize())
        return found or names.get(word.lower(), word).capitalize()


class RuleSet:
    """Rules in the order in which they apply.

    Attributes:
        rules: The rules.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._of: dict[str | int, list[int]] = {}  # places of the rules that apply to texts with a feature
        for place, rule in enumerate(self.rules):
            for need in rule.needs:
                self._of.setdefault(need, []).append(place)
        self._with_digit = frozenset(place for place, rule in enumerate(self.rules) if rule.has_digit)

    def find_rewrites(self, text: str, first: int) -> list[Rewrite]:
        """Return the rewrites of ``text`` from ``first`` on, in order. Of two that overlap the earlier rule wins."""
        found: list[Rewrite] = []
        taken = bytearray(len(text) + 1)
        needs = self._of.keys() & features(text, first)
        places = {place for need in needs for place in self._of[need]}
        for place in sorted(places if _DIGIT.search(text, first) else places - self._with_digit):
            rule = self.rules[place]
            for match in rule.pattern.finditer(text, 0 if rule.looks_back else first):
                for start, end, spoken in rule.read(match):
                    start = max(first, start)
                    if start < end and not any(taken[start:end]):
                        taken[start:end] = b"\1" * (end - start)
                        found.append((start, end, spoken))
        return set_apart(text, sorted(found))


def _rarest(name: str) -> str:
    """Return the part of a name that fewest texts have: a sign, or the longest word."""
    parts: list[str] = re.findall("[a-z]+|[^a-z ]", name)
    return max(parts, key=lambda part: (not part.isalpha() and part not in ".'", len(part)))


def features(text: str, first: int = 0) -> set[str | int]:
    """Return the words of ``text``, and from ``first`` on its signs and every number of digits up to what it has.

    A period counts only before another character: most texts end with one.
    """
    found: set[str | int] = set(_WORD.findall(text.lower()))
    if _MARK.search(text, first):
        signs = set(_SIGN.findall(text, first))
        digits = len(_DIGIT.findall(text, first))
        found.update(map(str.lower, signs), range(1, digits + 1), () if signs <= _PUNCTUATION else ("SIGN",))
    return found


def set_apart(text: str, found: Iterable[Rewrite]) -> list[Rewrite]:
    """Put spaces between what is spoken and the letters, digits and signs next to it, and no others."""
    result: list[Rewrite] = []
    for start, end, spoken in found:
        spoken = spoken.strip()
        before = result[-1][2] if result and result[-1][1] == start else text[max(0, start - 1) : start]
        if text[end : end + 1] == ".":
            spoken = spoken.removesuffix(".")
        is_followed = _AFTER_WORDS.match(text, end) is not None
        if not spoken:
            spoken = " " if before[-1:].isalnum() and text[end : end + 1] not in _ENDS else ""
        else:
            space_before = " " if spoken[0].isalnum() and _BEFORE_WORDS.search(before) else ""
            spoken = space_before + spoken + " " * (is_followed and spoken[-1] != "“")
        result.append((start, end, spoken))
    return result


def _alternatives(words: Iterable[str]) -> str:
    escaped = "|".join(sorted(map(re.escape, words), key=len, reverse=True))
    return "(?:" + escaped.replace(r"\ ", r"\.? ").replace("µ", "[µμ]") + ")"


def _one_of(words: str) -> str:
    return "(?:" + "|".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" for word in words.split()) + ")"
