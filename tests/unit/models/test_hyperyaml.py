"""Model directories' YAML is data: equal to what hyperpyyaml reads, and inert where hyperpyyaml would act."""

from __future__ import annotations

import contextlib
import io
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cases import each_case
from tts_worker.errors import BundleError
from tts_worker.models.bundles.hyperyaml import load_hyperyaml
from tts_worker.models.bundles.yaml_reader import Tagged

DATA = Path(__file__).parents[2] / "data" / "cosyvoice"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """hyperpyyaml's own warnings are not ours to fail on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def plain(value: Any) -> Any:
    """Our value with every tag shown as (tag, arguments), the form that the recording classes below give too."""
    if isinstance(value, Tagged):
        return (value.tag.partition(":")[2], plain(value.value) or {})
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """hyperpyyaml itself, with every name that a tag can have standing for a recorder of its arguments."""
    with quiet():
        import hyperpyyaml.core as core

    def locate(name: str) -> Any:
        if name in ("random.seed", "numpy.random.seed", "torch.manual_seed", "torch.cuda.manual_seed_all"):
            return lambda *arguments: None

        class Recorder:
            def __new__(cls, *args: Any, **kwargs: Any) -> Any:
                return (name, kwargs or (list(args) if args else {}))

        return Recorder

    monkeypatch.setattr(core.pydoc, "locate", locate)

    def load(text: str) -> Any:
        return unpartial(core.load_hyperpyyaml(io.StringIO(text)))

    return load


def unpartial(value: Any) -> Any:
    """``!name:`` gives a class or a partial of one: call it to see what it recorded."""
    if callable(value):
        return unpartial(value())
    if isinstance(value, dict):
        return {key: unpartial(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(unpartial(item) for item in value)
    return value


@pytest.mark.parametrize("family", ["cosyvoice2", "cosyvoice3"])
def test_official_yaml_reads_like_hyperpyyaml(reference: Callable[[str], Any], family: str) -> None:
    text = (DATA / f"{family}-tiny" / f"{family}.yaml").read_text("utf-8")

    ours = plain(load_hyperyaml(text, family))

    assert ours == reference(text)
    assert ours["flow"][1]["decoder"][1]["estimator"][1]["static_chunk_size"] == 50


NO_WORDS = ("null", "true", "false", "nan", "inf", "yes", "no", "on", "off", "y", "n")  # YAML means something by them

words = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda word: word not in NO_WORDS)
scalars = st.one_of(
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.booleans(),
    st.none(),
    words,
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=12),
)


def written(value: Any, indent: int) -> str:
    """``value`` in the YAML style of the official files."""
    if isinstance(value, dict) and value:
        return "".join(f"\n{' ' * indent}{key}: {written(item, indent + 4)}" for key, item in value.items())
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list):
        return "[" + ", ".join(written(item, indent) for item in value) + "]"
    if isinstance(value, str) and not words_only(value):
        return "'" + value.replace("'", "''") + "'"
    return {None: "null", True: "True", False: "False"}.get(value, str(value)) if not isinstance(value, str) else value


def words_only(text: str) -> bool:
    return text.isascii() and text.replace("_", "").isalpha() and text.islower() and text not in NO_WORDS


trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(scalars, max_size=4),
        st.dictionaries(words, inner, max_size=4),
        st.lists(st.lists(scalars, max_size=3), max_size=3),
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@example(document={"a": "true", "b": ["no", "null"]}, comment=False)
@given(document=st.dictionaries(words, trees, min_size=1, max_size=5), comment=st.booleans())
def test_plain_data_round_trips(document: dict[str, Any], comment: bool) -> None:
    text = written(document, 0) + ("   # the end\n" if comment else "\n")

    assert load_hyperyaml(text, "tree") == document


@settings(deadline=None, max_examples=40)
@given(
    a=st.integers(1, 50),
    b=st.integers(1, 9),
    c=st.floats(0.125, 8, width=16),
    operator=st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]),
    other=st.sampled_from(["+", "-", "*"]),
)
def test_reference_arithmetic_matches_hyperpyyaml(a: int, b: int, c: float, operator: str, other: str) -> None:
    with quiet():
        from hyperpyyaml import load_hyperpyyaml

    text = (
        f"a: {a}\nb: {b}\nc: {c}\n"
        f"d: !ref <a> {operator} <b> {other} 2 # a comment\n"
        f"e: !ref (<a> {other} <c>) * <b>\n"
        "f: !ref <a>/files/<b>.pt\n"
        "g: {deep: [!ref <a>, 2]}\n"
        "h: !ref <g[deep]>\n"
        "i: !copy <g>\n"
        "j: (3, 4.5, x)\n"
    )

    with quiet():
        assert load_hyperyaml(text, "refs") == load_hyperpyyaml(io.StringIO(text))


def test_older_yaml_layouts_are_read() -> None:
    text = """
model_path: ''   # an older name
list:
- 1
- !new:a.b.C
  x: 1
- - 2
  - 3
- name: dashed
  value: "tab\\tquote\\""
pipeline: [
    !ref <list>,
    'a # is no comment here',
]
nothing:
"""
    assert load_hyperyaml(text, "old") == {
        "model_path": "",
        "list": [1, Tagged("!new:a.b.C", {"x": 1}), [2, 3], {"name": "dashed", "value": 'tab\tquote"'}],
        "pipeline": [
            [1, Tagged("!new:a.b.C", {"x": 1}), [2, 3], {"name": "dashed", "value": 'tab\tquote"'}],
            "a # is no comment here",
        ],
        "nothing": None,
    }


def test_block_text_and_escapes_are_read() -> None:
    text = 'a: |\n  one\n  two\nb: "\\x41"\nc: {1, 2}\nd: yes\ne: 1:30\nf: 1e-5\n'

    assert load_hyperyaml(text, "text") == {
        "a": "one\ntwo\n",
        "b": "A",
        "c": {"1": None, "2": None},
        "d": "yes",
        "e": "1:30",
        "f": 1e-5,
    }


@pytest.fixture
def tripwire(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A module whose functions report that they ran."""
    ran: list[str] = []
    module = types.ModuleType("tripwire")
    module.__dict__["act"] = lambda *arguments: ran.append("act")
    monkeypatch.setitem(sys.modules, "tripwire", module)
    monkeypatch.setattr("os.system", lambda command: ran.append(command))
    return ran


@pytest.mark.parametrize(
    "line",
    [
        "x: !new:os.system [touch /tmp/owned]",
        "x: !apply:os.system ['touch /tmp/owned']",
        "x: !apply:tripwire.act []",
        "x: !name:tripwire.act",
        "x: !module:tripwire",
        "x: !!python/object/apply:os.system [id]",
        "x: !!python/object/new:os.system {args: [id]}",
        "x: !include:/etc/hostname",
        "x: !applyref:tripwire.act {_args: [1], _kwargs: {}}",
    ],
)
def test_tags_run_no_code(tripwire: list[str], monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr("builtins.open", lambda *arguments: pytest.fail("a file was opened"))

    value = load_hyperyaml(line, "hostile")["x"]

    assert isinstance(value, Tagged)
    assert value.tag in line
    assert tripwire == []


def bomb() -> str:
    return "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))


@each_case(
    ("text", "complaint"),
    [
        (bomb(), "anchors"),
        ("a: *b", "anchors"),
        ("a: {<<: {b: 1}}\n<<: {c: 1}", "merge"),
        ("a: 1\na: 2", "twice"),
        ("a: {b: 1, b: 2}", "twice"),
        ("a: [1, 2", "flow sequence"),
        ("a: 'x", "quoted scalar"),
        ("a: [1, 2}", "flow sequence"),
        ("a: 1\n    b: 2", "not allowed here"),
        ("a:\n    b: 1\n  c: 2", "block end"),
        ("a: b: 1", "not allowed here"),
        ("\ta: 1", "cannot start"),
        ("- 1\n- 2", "mapping"),
        ("", "empty"),
        ("# nothing", "empty"),
        ("a: !ref <b>", "missing key"),
        ("a: !ref <a>", "circular"),
        ("a: !ref <b> + 1\nb: !ref <a> + 1", "circular"),
        ("a: !ref <b.c>\nb: {c: 1}", "missing key"),
        ("a: !ref <b> * 2\nb: [1]", "part of"),
        ("a: 9\nb: !ref <a> ** <a> ** <a>", "too large"),
        ("a: 1\nb: !ref <a> / 0", "arithmetic"),
        ("a: -2\nb: !ref (<a>) ** 0.5", "too large"),
        ("a: - 1", "not allowed here"),
        ("a: {[1]: 2}", "a key must be"),
        ("a: \x07", "special characters"),
        ("a: " + "[" * 200 + "]" * 200, "nested"),
        ("".join(" " * i + "a:\n" for i in range(200)), "nested"),
        ("a: " + "x" * 20000, "characters"),
        ("a: 1\n" * 300000, "characters"),
        ("a: {b: !!set {}} extra", "block end"),
    ],
)
def test_unsupported_yaml_is_refused_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(BundleError, match=rf"(?s)^model\.yaml.*({complaint})"):
        load_hyperyaml(text, "model.yaml")


AT_ONCE_S = 1
"""Seconds of work of this thread, so that a stalled machine does not count; there may be a collection of the
whole heap among it. What is prevented would take hours."""


def doubling(n: int) -> str:
    return "a0: xxxxxxxx\n" + "".join(f"a{i}: !ref <a{i - 1}><a{i - 1}>\n" for i in range(1, n))


def sharing(n: int) -> str:
    return "a0: [1, 2]\n" + "".join(f"a{i}: [!ref <a{i - 1}>, !ref <a{i - 1}>]\n" for i in range(1, n))


def chained(n: int) -> str:
    return "".join(f"a{i}: !ref <a{i + 1}>\n" for i in range(n)) + f"a{n}: 1\n"


@pytest.mark.parametrize("text", [doubling(40), chained(2000), "a: " + "- " * 8000, "a" + " " * 16000 + "b"])
def test_hostile_yaml_is_refused_quickly(text: str) -> None:
    started_s = time.thread_time()

    with pytest.raises(BundleError):
        load_hyperyaml(text, "hostile")

    assert time.thread_time() - started_s < AT_ONCE_S


def test_repeated_references_are_shared() -> None:
    started_s = time.thread_time()

    loaded = load_hyperyaml(sharing(60), "shared")

    last = loaded["a59"]
    assert isinstance(last, list)
    assert last[0] is last[1]
    assert time.thread_time() - started_s < AT_ONCE_S


@settings(deadline=None, max_examples=150)
@given(st.text(st.sampled_from("ab:-[]{},!<>*&'\"# \n\t.0#|("), max_size=60))
def test_any_text_parses_or_raises_bundle_error(text: str) -> None:
    try:
        loaded = load_hyperyaml(text, "fuzz")
    except BundleError:
        return
    assert isinstance(loaded, dict)
