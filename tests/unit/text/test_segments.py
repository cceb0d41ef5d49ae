"""Segments of typical texts from people and language models, as a table."""

from __future__ import annotations

import pytest
from tests.cases import each_case

from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.segmenter import spoken_size
from tts_worker.types import Boundary

C = Boundary.CLAUSE
S = Boundary.SENTENCE
P = Boundary.PARAGRAPH
X = Boundary.FORCED
E = Boundary.END

CASES: list[tuple[str, list[tuple[str, Boundary]]]] = [
    ("Hello world.", [("Hello world.", E)]),
    ("Hello. How are you? Fine!", [("Hello.", S), ("How are you?", S), ("Fine!", E)]),
    ("Sure, I can do that.", [("Sure, I can do that.", E)]),
    (
        "Well, of course, I can help you with that today.",
        [("Well, of course,", C), ("I can help you with that today.", E)],
    ),
    ("Dr. Smith met Mr. Jones.", [("Dr. Smith met Mr. Jones.", E)]),
    ("Dr. Smith, Ph.D., is here. Ask him.", [("Dr. Smith, Ph.D.,", C), ("is here.", S), ("Ask him.", E)]),
    ("J. R. R. Tolkien wrote it. Read it.", [("J. R. R. Tolkien wrote it.", S), ("Read it.", E)]),
    ("Use plan B. It works.", [("Use plan B. It works.", E)]),
    ("We use tools, e.g. hammers. They help.", [("We use tools,", C), ("e.g. hammers.", S), ("They help.", E)]),
    ("He lives in the U.S. and works.", [("He lives in the U.S. and works.", E)]),
    ("The U.S. Army came. It left.", [("The U.S. Army came.", S), ("It left.", E)]),
    ("See you at 5 p.m. We start then.", [("See you at 5 p.m.", S), ("We start then.", E)]),
    ("At 9 a.m. sharp we go.", [("At 9 a.m. sharp we go.", E)]),
    ("Bring pens, paper, etc. and come.", [("Bring pens, paper,", C), ("etc. and come.", E)]),
    ("Order no. A-1 and Item No. B7 shipped.", [("Order no. A-1 and Item No. B7 shipped.", E)]),
    ("He said no. Anna left.", [("He said no.", S), ("Anna left.", E)]),
    ("Bring pens, etc. Then come.", [("Bring pens, etc.", S), ("Then come.", E)]),
    ("Apple Inc. is big. Yes.", [("Apple Inc. is big.", S), ("Yes.", E)]),
    ("No. I do not.", [("No.", S), ("I do not.", E)]),
    ("See No. 5 there. Ok.", [("See No. 5 there.", S), ("Ok.", E)]),
    ("Born Jan. 5 in Rome. Yes.", [("Born Jan. 5 in Rome.", S), ("Yes.", E)]),
    ("Pi is 3.14 exactly. Good.", [("Pi is 3.14 exactly.", S), ("Good.", E)]),
    ("It costs 1,000,000 dollars, or more.", [("It costs 1,000,000 dollars,", C), ("or more.", E)]),
    ("At 10:30 we go. Then home.", [("At 10:30 we go.", S), ("Then home.", E)]),
    ("Version 1.2.3 is out. Get it.", [("Version 1.2.3 is out.", S), ("Get it.", E)]),
    ("It is 25. Then 26.", [("It is 25.", S), ("Then 26.", E)]),
    ('Ask Dr. "Who" now. Ok.', [('Ask Dr. "Who" now.', S), ("Ok.", E)]),
    ('Some say e.g. "this" now. Ok.', [('Some say e.g. "this" now.', S), ("Ok.", E)]),
    ('He came at 5 p.m. "Why?" Ok.', [("He came at 5 p.m.", S), ('"Why?"', S), ("Ok.", E)]),
    ("Room 101. follows", [("Room 101.", S), ("follows", E)]),
    ("Let x. Then y.", [("Let x.", S), ("Then y.", E)]),
    ("I have 3. apples", [("I have 3. apples", E)]),
    ("In 1999. Then 2000.", [("In 1999.", S), ("Then 2000.", E)]),
    ("Wait... what is this?", [("Wait... what is this?", E)]),
    ("Wait... What is this?", [("Wait...", S), ("What is this?", E)]),
    ("So… yes. No…", [("So… yes.", S), ("No…", E)]),
    ("... and then we left.", [("and then we left.", E)]),
    ("What?! No way!!! Yes.", [("What?!", S), ("No way!!!", S), ("Yes.", E)]),
    ('"Stop!" he said. "Go." She left.', [('"Stop!" he said.', S), ('"Go."', S), ("She left.", E)]),
    ("He said (really.) that. (See above.) Next.", [("He said (really.) that.", S), ("(See above.)", S), ("Next.", E)]),
    ("It's 'fine.' Ok.", [("It's 'fine.'", S), ("Ok.", E)]),
    ("“Well.” Next", [("“Well.”", S), ("Next", E)]),
    ("Mail joe.doe@example.com now. Thanks.", [("Mail joe.doe@example.com now.", S), ("Thanks.", E)]),
    ("Use node.js or example.com today. Ok.", [("Use node.js or example.com today.", S), ("Ok.", E)]),
    ("Look: one, two; three. End", [("Look: one, two;", C), ("three.", S), ("End", E)]),
    (
        "A long first clause goes here, and a second one follows, and a third one ends.",
        [("A long first clause goes here,", C), ("and a second one follows,", C), ("and a third one ends.", E)],
    ),
    ("He paused — then he spoke again.", [("He paused — then he spoke again.", E)]),
    ("a well-known fact - so they say - is this", [("a well-known fact -", C), ("so they say - is this", E)]),
    ("What is 15 - 3 today?", [("What is 15 - 3 today?", E)]),
    ("run foo --bar now", [("run foo --bar now", E)]),
    ("pages 10–20 and so on", [("pages 10–20 and so on", E)]),
    ("One\nTwo\nThree", [("One", P), ("Two", P), ("Three", E)]),
    ("Title\n\nBody text here.", [("Title", P), ("Body text here.", E)]),
    (
        "Soft wrapped lines that are long enough to wrap\ngo on in lower case. Yes.",
        [("Soft wrapped lines that are long enough to wrap go on in lower case.", S), ("Yes.", E)],
    ),
    ("Line one.\r\nLine two.", [("Line one.", P), ("Line two.", E)]),
    ("你好，世界。今天很好！", [("你好，世界。", S), ("今天很好！", E)]),
    ("今天天气很好，我们去公园玩吧，好不好？", [("今天天气很好，", C), ("我们去公园玩吧，好不好？", E)]),
    ("「好的。」他说。", [("「好的。」", S), ("他说。", E)]),
    ("价格是3.5元。好", [("价格是3.5元。", S), ("好", E)]),
    ("1.苹果\n2.香蕉", [("1.苹果", P), ("2.香蕉", E)]),
    ("Hello，你好。Bye", [("Hello，你好。", S), ("Bye", E)]),
    ("これはペンです。はい、そうです。", [("これはペンです。", S), ("はい、そうです。", E)]),
    ("안녕하세요. 반갑습니다.", [("안녕하세요.", S), ("반갑습니다.", E)]),
    ("नमस्ते। आप कैसे हैं?", [("नमस्ते।", S), ("आप कैसे हैं?", E)]),
    ("مرحبا، كيف حالك؟ بخير.", [("مرحبا، كيف حالك؟", S), ("بخير.", E)]),
    ("สวัสดีครับ ยินดีต้อนรับ", [("สวัสดีครับ ยินดีต้อนรับ", E)]),
    ("# Heading\nText under it.", [("Heading", P), ("Text under it.", E)]),
    ("- one\n- two\n- three", [("one", P), ("two", P), ("three", E)]),
    ("1. first\n2. second", [("1. first", P), ("2. second", E)]),
    ("* item with **bold**\n* next", [("item with bold", P), ("next", E)]),
    ("> quoted text\nmore", [("quoted text", P), ("more", E)]),
    ("| Name | Age |\n|---|---|\n| Bob | 5 |", [("Name, Age", P), ("Bob, 5", E)]),
    ("Use `pip install` now. Done.", [("Use pip install now.", S), ("Done.", E)]),
    ("Before:\n```python\nprint(1)\n```\nAfter.", [("Before:", P), ("After.", E)]),
    ("See [the docs](https://x.com/a). Ok.", [("See the docs.", S), ("Ok.", E)]),
    ("![logo](a.png)Look here.", [("Look here.", E)]),
    ("Visit https://example.com/a.b?c=1. Then call.", [("Visit.", S), ("Then call.", E)]),
    ("Great 👍🏽! Thanks 🎉", [("Great!", S), ("Thanks", E)]),
    (
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 Family \U0001f1e9\U0001f1ea flag 1\ufe0f\u20e3 one",
        [("Family flag one", E)],
    ),
    ('<speak>Hello <break time="1s"/> there.</speak>', [("Hello", Boundary.BREAK), ("there.", E)]),
    ("Fact[1]. Other fact[^2].", [("Fact.", S), ("Other fact.", E)]),
    ("2*3*4 is 24. snake_case_name too.", [("2*3*4 is 24. snake_case_name too.", E)]),
    ("if a < b and 5 > 3 then", [("if a < b and 5 > 3 then", E)]),
    ("Open C:\\x now. Ok.", [("Open C:\\x now.", S), ("Ok.", E)]),
    ("~5 minutes ~~not~~ left", [("~5 minutes not left", E)]),
    ("AT&amp;T and R&D. Yes.", [("AT&T and R&D.", S), ("Yes.", E)]),
    ("", []),
    ("   ", []),
    ("🎉🎉", []),
    ("...", []),
    ("```\ncode only\n```", []),
    ("Hello 🎉", [("Hello", E)]),
]


@each_case(("text", "expected"), CASES)
def test_segments(text: str, expected: list[tuple[str, Boundary]]) -> None:
    pipeline = TextPipeline()
    segments = pipeline.feed(text) + pipeline.end()
    assert [(segment.text, segment.boundary) for segment in segments] == expected


CUTS: list[tuple[str, list[str]]] = [
    # An unknown short word with a period before a small letter, or a word without vowels before a digit.
    ("Your appt. with Dr. Lee is set. Bye.", ["Your appt. with Dr. Lee is set.", "Bye."]),
    ("The temp. is 70. Fine.", ["The temp. is 70.", "Fine."]),
    ("Call the mgmt. of it. Bye.", ["Call the mgmt. of it.", "Bye."]),
    ("Room rsvd. 5 nights. Bye.", ["Room rsvd. 5 nights.", "Bye."]),
    ("The temp. (in Rome) is 70. Fine.", ["The temp. (in Rome) is 70.", "Fine."]),
    ("That is the temp. Then we go.", ["That is the temp.", "Then we go."]),
    ("The shop sells cake. 3 are left.", ["The shop sells cake.", "3 are left."]),
    ("He watches TV. 3 are left.", ["He watches TV.", "3 are left."]),
    # Ordinary words end a sentence before a small letter too.
    ("I can do it. then he left", ["I can do it.", "then he left"]),
    ("Sure thing. what else?", ["Sure thing.", "what else?"]),
    ("hey there. how are you. fine", ["hey there.", "how are you.", "fine"]),
    # Words that are abbreviations only before a number.
    ("I said no. then he left", ["I said no.", "then he left"]),
    ("No. i do not", ["No.", "i do not"]),
    ("See no. 5 and fig. 3 now. Ok.", ["See no. 5 and fig. 3 now.", "Ok."]),
    ("He ate a fig. then he left", ["He ate a fig.", "then he left"]),
    ("Look at the sun. it is hot", ["Look at the sun.", "it is hot"]),
    ("The total no. of calls is up. Ok.", ["The total no. of calls is up.", "Ok."]),
    ("See para. 2 and ed. 2 there. Ok.", ["See para. 2 and ed. 2 there.", "Ok."]),
    # Roman numerals after words that have a number.
    ("See Art. III and para. IV there. Ok.", ["See Art. III and para. IV there.", "Ok."]),
    ("Read Vol. X now. Ok.", ["Read Vol. X now.", "Ok."]),
    ("Read ch. V, then stop. Ok.", ["Read ch. V, then stop.", "Ok."]),
    ("Read Vol. I of it. Ok.", ["Read Vol. I of it.", "Ok."]),
    ("We love art. I paint.", ["We love art.", "I paint."]),
    ("We love art. It is fun.", ["We love art.", "It is fun."]),
    ("We love art. I'm glad.", ["We love art.", "I'm glad."]),
    ("We love art. Vases too.", ["We love art.", "Vases too."]),
    ("We love art. X-rays too.", ["We love art.", "X-rays too."]),
    # A size and what it is the size of.
    ("I want 1 lg. Coke and a sm. Pepsi. Ok.", ["I want 1 lg. Coke and a sm. Pepsi.", "Ok."]),
    ("We take the lg. Then we go.", ["We take the lg.", "Then we go."]),
    ("It is 5 in. wide. Ok.", ["It is 5 in. wide.", "Ok."]),
    ("Please come in. then sit", ["Please come in.", "then sit"]),
    # Time zones, weekdays and months after a.m. and p.m.
    ("Come at 9 a.m. Monday. Ok.", ["Come at 9 a.m. Monday.", "Ok."]),
    ("It ends at 5 p.m. Eastern. Ok.", ["It ends at 5 p.m. Eastern.", "Ok."]),
    ("It ends at 5 p.m. (Pacific). Ok.", ["It ends at 5 p.m. (Pacific).", "Ok."]),
    ("It leaves at 6:05 a.m. PST today. Ok.", ["It leaves at 6:05 a.m. PST today.", "Ok."]),
    ("Come at 9 a.m. Sept. 9th. Ok.", ["Come at 9 a.m. Sept. 9th.", "Ok."]),
    ("Come at 9 a.m. May 9. Ok.", ["Come at 9 a.m. May 9.", "Ok."]),
    ("Come at 9 a.m. May I go?", ["Come at 9 a.m.", "May I go?"]),
    ("Come at 9 a.m. Maybe I go.", ["Come at 9 a.m.", "Maybe I go."]),
    ("Come at 9 a.m. Most do.", ["Come at 9 a.m.", "Most do."]),
    ("Come at 9 a.m. Monica does.", ["Come at 9 a.m.", "Monica does."]),
    ("Come at 9 a.m. Easter is near.", ["Come at 9 a.m.", "Easter is near."]),
    ("Come at 9 a.m. PSTN is old.", ["Come at 9 a.m.", "PSTN is old."]),
    ("Come on Tues. Sept. 9th. Ok.", ["Come on Tues. Sept. 9th.", "Ok."]),
    ("Come on Tues. She is in. Ok.", ["Come on Tues.", "She is in.", "Ok."]),
    # A forced cut keeps a number with its sign, unit and word.
    (
        "With the tip and the tax that we talked about a moment ago the whole total now comes to $44.82 today.",
        [
            "With the tip and the tax that we talked about a moment ago the whole total now comes",
            "to $44.82 today.",
        ],
    ),
]


def cut(text: str, size: int) -> list[str]:
    """Return the segments of ``text`` in deltas of ``size`` characters."""
    pipeline = TextPipeline()
    found = [part for place in range(0, len(text), size) for part in pipeline.feed(text[place : place + size])]
    return [segment.text for segment in found + pipeline.end()]


@pytest.mark.parametrize(("text", "expected"), CUTS)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_sentences_go_on_after_abbreviations(text: str, expected: list[str], size: int) -> None:
    assert cut(text, size) == expected


@pytest.mark.parametrize(
    "before", ["comes to | $44.82", "is about 25 | °C and", "we took 12 | bags", "Dear Dr. | Lee and"]
)
def test_forced_cut_keeps_numbers_and_abbreviations(before: str) -> None:
    """The bar shows the last space that fits the segment."""
    head, tail = before.split(" | ")
    text = f"{'word ' * 30}"[: 89 - spoken_size(head)] + f"{head} {tail}"
    first, second = cut(text, 1000)
    assert f"{first} {second}" == " ".join(text.split())
    assert second.startswith((head.split()[-1], head.split()[-2]))
    assert second.endswith(tail)


def test_forced_cut_of_numbers_alone_is_at_a_space() -> None:
    segments = cut("12 " * 40, 1000)
    assert " ".join(segments) == ("12 " * 40).strip()
    assert len(segments[0]) > 30


def test_forced_cut_of_chinese_keeps_a_number() -> None:
    assert cut("这" * 27 + "一共是1234567元整", 1000) == ["这" * 27 + "一共", "是1234567元整"]


def test_word_that_may_be_short_for_another_waits_one_letter() -> None:
    pipeline = TextPipeline()
    assert pipeline.feed("That is the temp. ") == []
    assert [segment.text for segment in pipeline.feed("T")] == ["That is the temp."]
    assert [segment.text for segment in pipeline.feed("hat is it. ")] == ["That is it."]


GERMAN: list[tuple[str, list[str]]] = [
    ("Am 3. Oktober kam er. Dann ging er.", ["Am 3. Oktober kam er.", "Dann ging er."]),
    ("Das ist z. B. gut. Ja.", ["Das ist z. B. gut.", "Ja."]),
    ("Siehe Nr. 5 bzw. Abs. 3. Ende.", ["Siehe Nr. 5 bzw. Abs. 3. Ende."]),
    ("Größe: schön. Übung!", ["Größe: schön.", "Übung!"]),
]


@pytest.mark.parametrize(("text", "expected"), GERMAN)
def test_german_ordinals_and_abbreviations(text: str, expected: list[str]) -> None:
    pipeline = TextPipeline(TextOptions(language="de-DE"))
    assert [segment.text for segment in pipeline.feed(text) + pipeline.end()] == expected


ABBREVIATED: list[tuple[str, str]] = [
    ("de", "Hr. Müller kommt ca. Anfang Mai."),
    ("de", "Siehe Kap. 3 und so weiter."),
    ("de", "Äpfel und Birnen usw. gibt es hier."),
    ("de", "Wir sind in der Hauptstr. 5 zu finden."),
    ("de", "Er diente im II. Weltkrieg bei der Marine."),
    ("de", "Das war 50 v. Chr. in Gallien."),
    ("es", "Hay varias p. ej. Madrid o Barcelona."),
    ("es", "Vive en EE. UU. desde el año pasado."),
    ("es", "Lea el cap. 3 del libro."),
    ("fr", "Voir chap. IV du livre."),
    ("it", "Leggi il cap. 3 del libro per es. domani."),
    ("ru", "Мы живём на ул. Ленина рядом с парком."),
    ("ru", "Он родился в г. Москва в мае."),
]
"""Language, and one sentence."""


@each_case(("language", "text"), ABBREVIATED)
def test_sentences_go_on_after_abbreviations_of_their_language(language: str, text: str) -> None:
    pipeline = TextPipeline(TextOptions(language=language))
    assert [segment.text for segment in pipeline.feed(text) + pipeline.end()] == [text]


SENTENCES: list[tuple[str, list[str]]] = [
    ("de", ["Ich mag Äpfel usw.", "Und du?"]),
    ("de", ["Das kostet inkl. MwSt.", "Danke."]),
    ("de", ["Er wohnt in der Hauptstr.", "Sie auch."]),
    ("de", ["Es dauert 5 min.", "Danach geht es los."]),
    ("it", ["Ci sono mele ecc.", "Grazie."]),
    ("de", ["Diese Art.", "Sie ist neu."]),
    ("de", ["So herrschte Wilhelm II.", "Er war Kaiser."]),
    ("es", ["Vive en EE. UU.", "Le gusta."]),
    ("es", ["Hay pan y queso etc.", "Gracias."]),
    ("pt", ["Temos pão etc.", "Obrigado."]),
    ("ru", ["Это было в 2020 г.", "Он уехал."]),
    ("ru", ["Есть чай и т. д.", "Спасибо."]),
]


@each_case(("language", "sentences"), SENTENCES)
def test_sentences_end_after_abbreviations_of_their_language(language: str, sentences: list[str]) -> None:
    pipeline = TextPipeline(TextOptions(language=language))
    assert [segment.text for segment in pipeline.feed(" ".join(sentences)) + pipeline.end()] == sentences


def test_later_clauses_are_longer() -> None:
    """The first clause is emitted early; later ones are longer for better prosody."""
    pipeline = TextPipeline()
    segments = pipeline.feed("and four words too, " * 12) + pipeline.end()
    sizes = [len(segment.text) for segment in segments]
    assert sizes[0] < 25
    assert sizes[0] < sizes[1] < max(sizes[2:])
    assert {segment.boundary for segment in segments[:-1]} == {C}


def test_text_without_punctuation_is_cut_at_spaces() -> None:
    pipeline = TextPipeline()
    segments = pipeline.feed("word " * 100) + pipeline.end()
    assert [len(segment.text) for segment in segments] == [89, 174, 174, 59]
    assert [segment.boundary for segment in segments] == [X, X, X, E]
    assert " ".join(segment.text for segment in segments) == ("word " * 100).strip()


def test_long_word_is_cut_at_the_maximum() -> None:
    pipeline = TextPipeline(TextOptions(first_clause_chars=5, clause_chars=10, first_max_chars=20, max_chars=30))
    segments = pipeline.feed("so " + "x" * 70) + pipeline.end()
    assert [segment.text for segment in segments] == ["so", "x" * 29, "x" * 30, "x" * 11]


def test_forced_cut_prefers_a_comma() -> None:
    pipeline = TextPipeline(TextOptions(first_clause_chars=40, first_max_chars=60, max_chars=80))
    segments = pipeline.feed("one short clause here, then many words without any mark at all follow") + pipeline.end()
    assert [(segment.text, segment.boundary) for segment in segments] == [
        ("one short clause here,", C),
        ("then many words without any mark at all follow", E),
    ]


def test_by_word_makes_every_word_a_segment() -> None:
    pipeline = TextPipeline(TextOptions(by_word=True))
    segments = pipeline.feed("Dr. Smith *paid* $3.14,\nok? 你好。 Yes") + pipeline.end()
    assert [segment.text for segment in segments] == [
        "Dr.",
        " Smith",
        " paid",
        " $3.14,",
        " ok?",
        " 你",
        "好。",
        " Yes",
    ]
    assert [segment.boundary for segment in segments] == [
        *[Boundary.WORD] * 3,
        P,
        *[Boundary.WORD] * 3,
        E,
    ]


def test_word_is_emitted_with_the_space_after_it() -> None:
    pipeline = TextPipeline(TextOptions(by_word=True))
    assert pipeline.feed("Hello") == []
    assert [segment.text for segment in pipeline.feed(" ")] == ["Hello"]
    assert [segment.text for segment in pipeline.feed("you ")] == [" you"]
