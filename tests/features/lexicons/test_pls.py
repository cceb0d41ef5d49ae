"""PLS files: what their lexemes become, and hostile XML."""

from __future__ import annotations

import time
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from tts_worker.errors import InvalidRequest
from tts_worker.features.lexicons.pls import read_pls
from tts_worker.text.lexicon import MAX_ENTRIES, Lexicon

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
NAMESPACE = 'xmlns="http://www.w3.org/2005/01/pronunciation-lexicon"'


def pls(*lexemes: str, attributes: str = f'version="1.0" {NAMESPACE} alphabet="ipa" xml:lang="en-US"') -> bytes:
    return f"{HEAD}<lexicon {attributes}>\n{''.join(lexemes)}\n</lexicon>".encode()


def lexeme(*parts: str) -> str:
    return f"<lexeme>{''.join(parts)}</lexeme>\n"


def grapheme(text: str) -> str:
    return f"<grapheme>{escape(text)}</grapheme>"


@each_case(
    ("file", "entries"),
    [
        (pls(), {}),
        (pls(lexeme(grapheme("nginx"), "<alias>engine x</alias>")), {"nginx": "engine x"}),
        (pls(lexeme(grapheme("Nike"), "<phoneme>ˈnaɪki</phoneme>")), {"Nike": "/ˈnaɪki/"}),
        (pls(lexeme(grapheme("Nike"), "<phoneme>/ˈnaɪki/</phoneme>")), {"Nike": "/ˈnaɪki/"}),
        # Several spellings of one word, and several words in one spelling.
        (pls(lexeme(grapheme("or"), grapheme("our"), "<alias>er</alias>")), {"or": "er", "our": "er"}),
        (pls(lexeme(grapheme("a"), "<alias>b</alias>"), lexeme(grapheme("a"), "<alias>c</alias>")), {"a": "b"}),
        # The first pronunciation in the order of the document, unless another one is preferred.
        (pls(lexeme(grapheme("a"), "<phoneme>eɪ</phoneme><alias>uh</alias>")), {"a": "/eɪ/"}),
        (pls(lexeme(grapheme("a"), '<phoneme>eɪ</phoneme><phoneme prefer="true">ə</phoneme>')), {"a": "/ə/"}),
        (pls(lexeme(grapheme("a"), '<alias prefer="true">uh</alias><phoneme prefer="true">ə</phoneme>')), {"a": "uh"}),
        # Alphabets.
        (pls(lexeme(grapheme("a"), '<phoneme alphabet="x-cmu-arpabet">EY1</phoneme>')), {"a": "/EY1/"}),
        (pls(lexeme(grapheme("a"), "<phoneme>EY1</phoneme>"), attributes='alphabet="cmu-arpabet"'), {"a": "/EY1/"}),
        # White space, comments, CDATA, character references; metadata, examples and other namespaces are left out.
        (pls(lexeme(grapheme("  New\n York "), "<alias>new <!-- --> yawk</alias>")), {"New York": "new yawk"}),
        (pls(lexeme(grapheme("R&D"), "<alias><![CDATA[are & dee]]>&#x21;</alias>")), {"R&D": "are & dee!"}),
        (
            pls(
                '<meta name="author" content="me"/><metadata><grapheme>x</grapheme></metadata>',
                lexeme(grapheme("a"), "<alias>b</alias><example>an <b>a</b></example>"),
                '<lexeme xmlns="urn:other"><grapheme>c</grapheme><alias>d</alias></lexeme>',
            ),
            {"a": "b"},
        ),
        # Graphemes that differ in case are different words.
        (
            pls(lexeme(grapheme("march"), "<alias>a</alias>"), lexeme(grapheme("March"), "<alias>b</alias>")),
            {"march": {"say": "a", "case_sensitive": True}, "March": {"say": "b", "case_sensitive": True}},
        ),
        (pls(lexeme(grapheme("Zoë"), "<alias>b</alias>")).decode()[len(HEAD) :].encode("utf-16"), {"Zoë": "b"}),
        (pls(lexeme(grapheme("a"), "<alias>b</alias>"), attributes=""), {"a": "b"}),
    ],
)
def test_lexemes_become_entries(file: bytes, entries: dict[str, Any]) -> None:
    assert read_pls(file) == entries
    Lexicon.from_mapping(entries)


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


@each_case(
    ("file", "complaint"),
    [
        (b"", "line 1: not valid XML"),
        (b"<lexicon>", "line 1: not valid XML"),
        (b"\xff\xfe\x00", "not valid XML"),
        (b"nginx: engine x", "line 1: not valid XML"),
        (b"<html><body/></html>", "line 1: this is no PLS file"),
        (b'<lexicon xmlns="urn:x"/>', "this is no PLS file"),
        (f'<!DOCTYPE l [<!ENTITY l0 "ha">{LAUGHS}]><lexicon>&l9;</lexicon>'.encode(), "document type declaration"),
        (b'<!DOCTYPE lexicon SYSTEM "file:///etc/passwd"><lexicon/>', "document type declaration"),
        (b'<!DOCTYPE l [<!ENTITY x SYSTEM "file:///etc/passwd">]><lexicon>&x;</lexicon>', "document type declaration"),
        (b'<!DOCTYPE l [<!ENTITY % p SYSTEM "http://127.0.0.1/x">%p;]><lexicon/>', "document type declaration"),
        (pls(lexeme(grapheme("a"), "<alias>&undefined;</alias>")), "line 3: not valid XML (undefined entity)"),
        (pls("<a>" * 100_000), "line 3: the elements are nested too deeply"),
        (pls(lexeme(grapheme("a"))), "line 3: the lexeme has neither"),
        (pls(lexeme("<alias>a</alias>")), "line 3: the lexeme has no <grapheme>"),
        (pls(lexeme(grapheme("a"), '<phoneme alphabet="x-sampa">V</phoneme>')), "line 3: the alphabet 'x-sampa'"),
        (pls(*(lexeme(grapheme(f"w{n}"), "<alias>b</alias>") for n in range(MAX_ENTRIES + 1))), "too many entries"),
        (b'<?xml version="1.0" encoding="rot13"?><lexicon/>', "(encoding|not valid XML)"),
        (b'<?xml version="1.0" encoding="shift_jis"?><lexicon/>', "(encoding|not valid XML)"),
        (b"<lexicon " + b" ".join(b'a%d=""' % n for n in range(100_000)) + b"/><x", "not valid XML"),
    ],
)
def test_hostile_file_is_refused(file: bytes, complaint: str) -> None:
    started_s = time.thread_time()
    with pytest.raises(InvalidRequest, match=complaint.replace("(undefined entity)", r"\(undefined entity\)")):
        read_pls(file)
    assert time.thread_time() - started_s < 2


words = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=12)


@given(st.dictionaries(words, words, max_size=20))
def test_any_words_survive(entries: dict[str, str]) -> None:
    read = read_pls(
        pls(*(lexeme(grapheme(word), f"<alias>{escape(alias)}</alias>") for word, alias in entries.items()))
    )
    assert {word: value["say"] if isinstance(value, dict) else value for word, value in read.items()} == entries


@given(st.binary(max_size=200))
def test_any_bytes_are_entries_or_a_typed_error(data: bytes) -> None:
    for file in (data, b"<lexicon>" + data + b"</lexicon>", b"<lexicon><lexeme>" + data):
        try:
            read_pls(file)
        except InvalidRequest:
            pass
