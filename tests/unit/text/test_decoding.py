"""Decoding of deltas: bytes split inside a character, strings split inside a surrogate pair."""

from __future__ import annotations

from tests.cases import each_case

from tts_worker.text.decoding import TextDecoder

GRIN = "\U0001f600"


@each_case(
    ("deltas", "expected"),
    [
        (["a", "b"], ["a", "b", ""]),
        (["\u00e9".encode()[:1], "\u00e9".encode()[1:]], ["", "\u00e9", ""]),
        ([GRIN.encode()[:3]], ["", "\ufffd"]),
        ([b"a\xffb"], ["a\ufffdb", ""]),
        (["x\ud83d", "\ude00y"], ["x", GRIN + "y", ""]),
        (["\ud83d\ude00"], [GRIN, ""]),
        (["\ud83d"], ["", "\ufffd"]),
        (["\ud83d", "x"], ["", "\ufffdx", ""]),
        (["\ude00"], ["\ufffd", ""]),
        (["\ud83d", "", b"", "\ude00"], ["", "", "", GRIN, ""]),
        (["\ud83d", b"x"], ["", "\ufffdx", ""]),
        ([b"\xf0\x9f", "x"], ["", "\ufffdx", ""]),
        ([b"a", "\u00e9", b"c"], ["a", "\u00e9", "c", ""]),
    ],
)
def test_deltas_are_joined(deltas: list[str | bytes], expected: list[str]) -> None:
    decoder = TextDecoder()
    assert [*map(decoder.feed, deltas), decoder.end()] == expected
