"""The text filter: a table of texts, and linear time for hostile text."""

from __future__ import annotations

import time

import pytest
from tests.cases import each_case
from tests.fakes.filtering import filter_text

from tts_worker.types import UrlMode


def filtered(text: str, *, markdown: bool = True, urls: UrlMode = UrlMode.DROP) -> str:
    return "".join(char for char, _ in filter_text(text, markdown=markdown, urls=urls))


CASES = [
    # emphasis
    ("**bold** and *it* and __b__ and _i_", "bold and it and b and i"),
    ("***both*** ~~gone~~ ~5 minutes", "both gone ~5 minutes"),
    ("un**believ**able", "unbelievable"),
    ("snake_case_name and _private_ and __init__", "snake_case_name and private and init"),
    ("2*3*4 and 2 * 3 and (a+b)*c and 2**10", "2*3*4 and 2 * 3 and (a+b)*c and 2**10"),
    ("*note: 2*3 is 6*", "note: 2*3 is 6"),
    ("dial *67, press *#6# or *9 then *21*5551234#", "dial *67, press *#6# or *9 then *21*5551234#"),
    ("dial *67* and *68, press *, or *9*", "dial 67 and 68, press *, or 9"),
    ("eat *5 a day* or *6, he pressed *7", "eat 5 a day or 6, he pressed 7"),
    ("a price of $5* applies", "a price of $5 applies"),
    ("**never closed", "never closed"),
    ("\\*not emphasis\\* \\_ \\# \\\\", "*not emphasis* _ # \\"),
    # code
    ("use `pip install` or ``a`b``", "use pip install or ab"),
    ("`snake_*x*` then *x*", "snake_*x* then x"),
    ("`never closed *x*\nnext *line*", "never closed *x*\nnext line"),
    ("before\n```python\nx = 1\n```\nafter", "before\nafter"),
    ("Here: ```py\ncode\n``` done", "Here:\ndone"),
    ("a ```span of code``` b", "a span of code b"),
    ("~~~\ncode\n~~~\nafter", "after"),
    ("````\n```\ncode\n````\nafter", "after"),
    ("```\nnever closed", ""),
    ("```" + "long line " * 12 + "``` and on\nnext", ("long line " * 12).strip() + " and on next"),
    # blocks
    ("# One\n## Two ##\ntext", "One\nTwo\ntext"),
    ("#hashtag and #1 and C#", "#hashtag and #1 and C#"),
    ("- one\n* two\n+ three\n• four\n  - nested", "one\ntwo\nthree\nfour\nnested"),
    ("- [ ] todo\n- [x] done\n- [y] other", "todo\ndone\n[y] other"),
    ("1. first\n2) second\n-5 degrees\n3.14 is pi", "1. first\n2) second\n-5 degrees\n3.14 is pi"),
    ("> quoted\n> > deeper", "quoted\ndeeper"),
    ("one\n---\ntwo\n***\nthree\n===\nfour", "one\ntwo\nthree\nfour"),
    ("| Name | Age |\n|------|:---:|\n| Bob | 5 |", "Name, Age\nBob, 5"),
    ("Name | Age\n--- | ---\nBob | 5", "Name, Age\nBob, 5"),
    ("a || b and x|y", "a || b and x|y"),
    # line breaks
    ("one\ntwo\r\nthree\rfour\n\n\nfive\u2028six", "one\ntwo\nthree\nfour\nfive\nsix"),
    ("a line that is long enough to be wrapped\ngoes on", "a line that is long enough to be wrapped goes on"),
    ("a line that is long enough to be wrapped\n- item", "a line that is long enough to be wrapped\nitem"),
    ("a line that is long enough to be wrapped\n\nnew", "a line that is long enough to be wrapped\nnew"),
    ("x" * 39 + "\nis an end", "x" * 39 + "\nis an end"),
    ("x" * 40 + "\nis wrapped", "x" * 40 + " is wrapped"),
    ("x " * 19 + "xx\nis wrapped", "x " * 19 + "xx is wrapped"),
    ("a   b\t c\xa0d", "a b c d"),
    ("Bonjour ! Ça va ? Oui , oui", "Bonjour ! Ça va ? Oui, oui"),
    # links
    ("see [the docs](https://x.com/a_(b)) now", "see the docs now"),
    ('[**bold** link](x "title") end', "bold link end"),
    ("![a picture](a.png) text", "text"),
    ("[![badge](b.svg)](link) text", "text"),
    ("[text][label] and [x][]", "text and x"),
    ("fact [1], fact[2, 3] and [^note].\n[^note]: the note", "fact, fact and.\nthe note"),
    ("a fact[^1]: so it is", "a fact: so it is"),
    ("[sic] and [a, b] stay", "[sic] and [a, b] stay"),
    ("[never closed", "[never closed"),
    ("[see](this is no link)", "[see](this is no link)"),
    ("[open " + "x" * 300 + "](y)", "[open " + "x" * 300 + "](y)"),
    # URLs
    ("go to https://example.com/a?b=1. Then", "go to. Then"),
    ("(see www.example.org/x_y)", "(see)"),
    ("**https://x.com** `ftp://y.z` <http://a.b>", ""),
    ("mailto:joe@x.com or joe_doe@x.com", "joe@x.com or joe_doe@x.com"),
    ("HTTP://SHOUT.COM/ ok, http is fine, www. too", "ok, http is fine, www. too"),
    ('(https://x.com/é.html?a!b) ok "http://y.z/(a)b" ok', '() ok "" ok'),
    ("请看https://x.com/路谢谢", "请看路谢谢"),
    # tags
    ("<b>Hello</b><br>World", "Hello\nWorld"),
    ('<speak><s>Hi</s> <say-as interpret-as="date">May</say-as></speak>', "Hi\nMay"),
    ("<img src=a.png alt=\"b\" width=1/>see <a href='x'>this</a><hr />", "see this\n"),
    ("<b >x</b ><i=3> <a b> <a b c> </> <a =3>", "x<i=3> <a b> <a b c> </> <a =3>"),
    ("<p>one</p><p>two</p>", "one\ntwo\n"),
    ("<|endofprompt|>hi <!-- hidden -->there <?xml?>x <!DOCTYPE html>y", "hi there x y"),
    ("a < b and 5 > 3 and x <y and z> w and <3", "a < b and 5 > 3 and x <y and z> w and <3"),
    ("write to <joe@example.com>", "write to joe@example.com"),
    ("AT&amp;T &lt;b&gt; R&D &nbsp;x &bogus; &#128077;&#39;", "AT&T <b> R&D x &bogus; '"),
    # characters
    ("Hi 👋🏽 there👨‍👩‍👧! Hello👋world ❤️ ✅", "Hi there! Hello world"),
    ("3️⃣ and #️⃣ and 3 ©️ ™ 🇩🇪 flag", "and and 3 ™ flag"),
    ("zero\u200bwidth\u200d \ufeffx \u202eevil\u202c s\u00adoft", "zerowidth x evil soft"),
    ("nul\x00 bell\x07 esc\x1b[0m del\x7f", "nul bell esc[0m del"),
    ("lone \ud800 and \udfff x\ufffd † y", "lone and x y"),
    ("e\u0301 ok 你好 ไทย", "e\u0301 ok 你好 ไทย"),
    # paths
    ("C:\\x and C:\\\\x and a/b", "C:\\x and C:\\x and a/b"),
]


@each_case(("text", "expected"), CASES)
def test_filter(text: str, expected: str) -> None:
    assert filtered(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see https://www.example.com:80/a?b=1. ok", "see example.com. ok"),
        ("http://user@h.de/x and <https://x.y/z> and www.a.b", "h.de and x.y and a.b"),
        ("**https://x.com**, (http://y.z)", "x.com, (y.z)"),
    ],
)
def test_url_is_read_as_its_host(text: str, expected: str) -> None:
    assert filtered(text, urls=UrlMode.HOST) == expected


def test_urls_are_kept_on_request() -> None:
    assert filtered("see https://x.com/a_b now", urls=UrlMode.KEEP) == "see https://x.com/a_b now"


def test_without_markdown_filter_only_characters_are_dropped() -> None:
    text = "# **b** <i> `c` [l](m) 👍 https://x.com\n\n- a\u200b"
    assert filtered(text, markdown=False) == "# **b** <i> `c` [l](m)\n- a"


def test_every_character_has_its_offset() -> None:
    text = "**a** [b](c) &amp; 👍 d"
    assert [(char, text[index]) for char, index in filter_text(text) if char != " "] == [
        ("a", "a"),
        ("b", "b"),
        ("&", "&"),
        ("d", "d"),
    ]


HOSTILE = [
    *(
        "[",
        "[a](",
        "[a](b c",
        "[[a]",
        "[x][ab",
        "](",
        "![",
        "<a ",
        '<a b="[x](',
        "<!--",
        "<|a",
        "<spell>a",
        "<spell></spell",
        '<phoneme ph="x">a',
        '<break time="1s"/>',
        "&amp",
        "\\",
        "*_",
        "`",
    ),
    *(
        "`a``b",
        "```a ",
        "~~~a\n",
        "|",
        "|-",
        "| a ",
        "# ",
        "- ",
        "1.",
        "> ",
        "---",
        "https://",
        "https://a.b((",
        "www.a.",
    ),
    *(
        "<think>",
        "<think",
        "<think>a</thin",
        "</think>",
        "<tool_call a=",
        "<|channel|>a",
        "<|channel|>",
        "<|a",
        "<|im_start|>",
    ),
    *("[TOOL_CALLS]", '{"name":', '{"name": "a", "arguments": ["', '\n{"id":"a",', "[THINK", "<details type="),
    *("$", "$x+", "$$x ", "$5 + ", "\\(x", "\\frac{", "\\sqrt[", "\\alpha_", "$\\text{a", "\\a", "{", "$x$"),
    *("<<", "<<warm: ", "<<warm", "^^", "^^a", "*laughs ", ". *la", "[pause 1s]", "[laughs", "[[laugh]]"),
    *("h", "👨‍👩‍👧", "\u200b", "a\u0301", " ", "\n", "a\n", "!"),
]


@each_case("mark", HOSTILE)
def test_hostile_text_takes_linear_time(mark: str) -> None:
    """Four times the text takes about four times as long; it would be sixteen times with a quadratic automaton."""

    def elapsed_s(length: int) -> float:
        text = (mark * length)[:length]
        began_s = time.process_time()
        filter_text(text)
        return time.process_time() - began_s

    def grows_linearly() -> bool:
        once, fourfold = elapsed_s(5_000), elapsed_s(20_000)
        return fourfold < 10 * max(once, 0.005)

    # Again, since a garbage collection may fall into the longer one.
    assert grows_linearly() or grows_linearly()
