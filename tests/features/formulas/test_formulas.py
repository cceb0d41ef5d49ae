"""Formulas in LaTeX are read as words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import each_case
from tests.fakes.reading import read, read_cut_anywhere, spoken
from tts_worker.features.formulas.formula_reader import spoken as formula_words
from tts_worker.text.options import TextOptions

FORMULAS = [
    (r"\frac{7}{10}", "seven tenths"),
    (r"\frac{1}{2}", "one half"),
    (r"\dfrac{3}{4}", "three quarters"),
    (r"\frac12", "one half"),
    (r"\frac{22}{7}", "twenty-two sevenths"),
    (r"\frac{22}{73}", "twenty-two over seventy-three"),
    ("f(1,2)", "f of one, two"),
    (r"\frac{a}{b}", "a over b"),
    (r"\frac{a+b}{c-d}", "the fraction a plus b, over c minus d"),
    ("x^2", "x squared"),
    ("x^{3}", "x cubed"),
    ("x^n", "x to the n"),
    ("x^{-1}", "x to the minus one"),
    ("2^{n+1}", "two to the power of n plus one"),
    ("x^{10}", "x to the ten"),
    (r"90^\circ", "ninety degrees"),
    ("A^T", "A transpose"),
    ("f'(x)", "f prime of x"),
    (r"\sqrt{2}", "the square root of two"),
    (r"\sqrt[3]{x}", "the cube root of x"),
    (r"\sqrt[n]{x}", "the n-th root of x"),
    ("a_1", "a sub one"),
    ("x_{ij}", "x sub i j"),
    ("x_1^2", "x sub one squared"),
    ("6{x}_{1} + 4{x}_{2} \\leq {24}", "six x sub one plus four x sub two is less than or equal to twenty-four"),
    (r"\alpha + \Omega", "alpha plus Omega"),
    (r"E = mc^2", "E equals m c squared"),
    (r"a \ne b", "a is not equal to b"),
    (r"x \geq 3", "x is greater than or equal to three"),
    (r"\pi \approx 3.14", "pi is approximately three point one four"),
    (r"3 \times 4 \cdot 5 \div 6 \pm 7", "three times four times five divided by six plus or minus seven"),
    ("2x - 5", "two x minus five"),
    (r"\sum_{i=1}^{n} a_i", "the sum from i equals one to n of a sub i"),
    (r"\sum_{i \in S} i", "the sum over i in S of i"),
    (r"\int_0^1 f(x)\,dx", "the integral from zero to one of f of x d x"),
    (r"\int f", "the integral of f"),
    (r"\prod_{k} k", "the product over k of k"),
    (r"\lim_{x \to 0} \sin x", "the limit as x approaches zero of sine x"),
    (r"\lim_{n \to \infty} \frac{1}{n}", "the limit as n approaches infinity of one over n"),
    (r"\log_2 8", "log base two of eight"),
    (r"\text{if } x > 0", "if x is greater than zero"),
    (r"\mathbf{v} \in \mathbb{R}^3", "v in the real numbers cubed"),
    (r"\left( a + b \right) c", "the quantity a plus b, c"),
    ("f(x)", "f of x"),
    (r"A \cup B \subseteq C", "A union B is a subset of C"),
    (r"f: A \to B", "f, A to B"),
    (r"p \Rightarrow q", "p implies q"),
    (r"\forall x \exists y", "for all x there exists y"),
    ("|x|", "the absolute value of x"),
    (r"\hat{y}", "y hat"),
    (r"\vec{v}", "vector v"),
    (r"\binom{n}{k}", "n choose k"),
    ("n!", "n factorial"),
    (r"\begin{aligned} x &= 1 \\ y &= 2 \end{aligned}", "x equals one, y equals two"),
    (r"\boxed{42}", "forty-two"),
    (r"\unknown{x} \qquad \foo", "x"),
    (r"1, 2, \ldots, n", "one, two, dot dot dot, n"),
    (r"\frac{\partial f}{\partial x}", "the fraction partial f, over partial x"),
    (r"\nabla \cdot E", "nabla times E"),
    (r"50\%", "fifty percent"),
    ("1,234.50", "one thousand two hundred thirty-four point five zero"),
    (r"\lfloor x \rfloor", "the floor of x"),
    (r"\bar{x}", "x bar"),
    (r"{{{", ""),
]


@each_case(("formula", "words"), FORMULAS)
def test_formula_is_read_as_words(formula: str, words: str) -> None:
    assert formula_words(formula) == words


@pytest.mark.parametrize(("formula", "words"), FORMULAS[:-1])
@pytest.mark.parametrize(("before", "after"), [("$", "$"), ("$$", "$$"), (r"\(", r"\)"), ("\\[\n", "\n\\]")])
def test_delimiters_hold_a_formula(before: str, after: str, formula: str, words: str) -> None:
    if "," in formula and before == "$" and formula[0].isdigit():
        return  # "$1,234.50" alone is money
    assert spoken(f"Thus {before}{formula}{after}, so it is.").replace("|", " ") == f"Thus {words}, so it is."


@each_case(
    ("text", "expected"),
    [
        (r"It is \frac{7}{10} here", "It is seven tenths here"),
        (r"so x \leq 5 and y\geq 2.", "so x is less than or equal to 5 and y is greater than or equal to 2."),
        (r"5\times3 is 15", "5 times 3 is 15"),
        (r"the \sum_{i=1}^{n} here", "the the sum from i equals one to n of here"),
        (r"an angle \theta_1", "an angle theta sub one"),
        (r"an angle \theta", "an angle theta"),
        (r"an angle $\theta$", "an angle theta"),
        (r"计算$x^2$的值", "计算 x squared 的值"),
        (r"\textbf{Note} this", "Note this"),
        (r"a \sqrt{2}.", "a the square root of two."),
    ],
)
def test_bare_command_is_read_as_words(text: str, expected: str) -> None:
    assert spoken(text) == expected


def test_formula_is_one_word_of_the_source() -> None:
    text = "so $x^2$ is"
    (segment,) = read_cut_anywhere(text)
    assert [(text[span.start : span.end], span.text) for span in segment.spans] == [
        ("so ", "so "),
        ("$x^2$", "x squared"),
        (" is", " is"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"also $x^2 + \frac{7}{10}$ hier", "also x² + 7/10 hier"),
        (r"also $a_1 \leq \alpha$ hier", "also a1 ≤ α hier"),
        (r"also $3 \times \text{drei}$ hier", "also 3 × drei hier"),
        (r"also x \geq 2 hier", "also x ≥ 2 hier"),
        (r"also \sqrt{2} \foo{x} hier", "also √2 x hier"),
        (r"also $4 \lt 5$ und $5 \gt 4$ hier", "also 4 < 5 und 5 > 4 hier"),
        (r"also $5 \bmod 3 = \ell$ hier", "also 5 mod 3 = l hier"),
    ],
)
def test_other_languages_read_the_symbols(text: str, expected: str) -> None:
    assert spoken(text, TextOptions(language="de")) == expected


FRAGMENTS = st.sampled_from(
    (
        *("$", "$$", r"\(", r"\)", r"\[", r"\]", "{", "}", "^", "_", "&", r"\\", "|", "(", ")", "[", "]", "*", " "),
        *(r"\frac", r"\sqrt", r"\leq", r"\text{if }", r"\text", r"\alpha", r"\sum", r"\left", r"\foo", r"\begin{a}"),
        *("x", "y", "2", "10", "3.5", "ab", "and", "word", "Hello ", ". ", ", ", "\n", "=", "+", "-", "`", "**", "\\"),
    )
)


@settings(deadline=None, max_examples=400)
@given(st.lists(FRAGMENTS, max_size=14).map("".join), st.integers(1, 9), st.booleans(), st.sampled_from((None, "de")))
def test_formulas_do_not_depend_on_the_split(text: str, size: int, by_word: bool, language: str | None) -> None:
    options = TextOptions(by_word=by_word, language=language)
    whole = read(text, options)
    assert read(text, options, size) == whole
    assert [s.start for s in whole] == [0, *(s.end for s in whole)][: len(whole)]
    for segment in whole:
        assert all(segment.start <= span.start < span.end <= segment.end for span in segment.spans)


@settings(deadline=None, max_examples=300)
@given(st.lists(FRAGMENTS, max_size=20).map("".join))
def test_words_of_a_formula_have_no_signs(formula: str) -> None:
    assert not re.search(r"[\\${}^_&\d|]", formula_words(formula))


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=60))
def test_any_text_can_be_read_as_a_formula(formula: str) -> None:
    assert formula_words(formula) == formula_words(formula).strip()


def test_deep_nesting_is_read() -> None:
    assert formula_words("{" * 600 + "x") == "x"
    assert formula_words(r"\frac" * 200 + "x") == ""
