"""What is a formula in LaTeX, and what is money or a path."""

from __future__ import annotations

import pytest
from tests.cases import each_case
from tests.fakes.reading import spoken

from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline


@each_case(
    "text",
    [
        "$5 and $10",
        "It is $20, not $30.",
        "$5-$10 per night",
        "$5-10 or $20/month",
        "a $5 fee and a $3 tip",
        "$1,234.56 (of $2,000)",
        "US$5 or A$5, $5m or $2.5k",
        "$5 + tax and $6 = a lot of $",
        "$5",
        "costs $",
        "$x and $y",
        "$HOME:$PATH",
        "$A:$B and $1",
        "the $ sign and $ again",
        "a $$ place and a $$ place",
        "$$$ is dear",
    ],
)
def test_money_and_variables_are_no_formulas(text: str) -> None:
    assert spoken(text).replace("|", " ") == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"C:\Users\alpha\pi and \\server\pi", r"C:\Users\alpha\pi and \server\pi"),
        (r"C:\new\x", r"C:\new\x"),
        (r"\(see above\) and \[the note\]", "(see above) and [the note]"),
        (r"a \foo and \n", r"a \foo and \n"),
        (r"\$5 and \$6", "$5 and $6"),
        ("`$x^2$` and `\\frac{1}{2}`", "$x^2$ and \\frac{1}{2}"),
    ],
)
def test_other_backslashes_are_text(text: str, expected: str) -> None:
    assert spoken(text) == expected


def test_without_markdown_formulas_stay() -> None:
    text = r"so $x^2$ and \frac{1}{2}"
    assert spoken(text, TextOptions(markdown=False)) == text


@pytest.mark.parametrize(
    "text", ["$x " + "+ x " * 400, r"\(" + "+ x " * 400, "$$" + "x + " * 400, r"\sqrt{" + "x" * 900]
)
def test_formula_without_an_end_is_text(text: str) -> None:
    pipeline = TextPipeline()
    assert pipeline.feed(text)
    assert pipeline.end()


@pytest.mark.parametrize("text", ["It costs $5 a", "It costs $20, a", "It is $5/mo, a", "a $3 tip and"])
def test_money_waits_for_no_more_than_a_word(text: str) -> None:
    """Nothing is held but the text of a word: "$5 + x" may be a formula."""
    pipeline = TextPipeline()
    assert "$" in "".join(segment.text for segment in pipeline.feed(text) + pipeline.flush_words())
