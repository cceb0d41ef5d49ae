"""Removes text that is not read aloud: Markdown, tags, URLs, emoji and invisible characters.

Chains the stages: characters, lines, URLs, inline marks, whitespace. Every output character stands for exactly one
original character and carries its offset, in order. Each stage is an automaton over single characters, so the result
does not depend on how the stream is split, and the work is linear. The delay is one character outside an open mark, and
at most about 300 characters after an open ``[`` or ``<``.
"""

from __future__ import annotations

from typing import Protocol

from tts_worker.text.blocks import BlockFilter
from tts_worker.text.character_filter import CharacterFilter
from tts_worker.text.inline import InlineFilter
from tts_worker.text.urls import UrlFilter
from tts_worker.text.whitespace import TextSink, WhitespaceFilter
from tts_worker.types import UrlMode

__all__ = ["TextFilter", "UrlMode", "filter_text"]


class Stage(Protocol):
    def settle(self) -> None: ...


class TextFilter:
    """Pushes readable text to ``out``.

    With ``markdown=False`` it keeps markup and tags, and drops only characters and, depending on ``urls``, URLs.
    """

    def __init__(self, out: TextSink, *, markdown: bool = True, urls: UrlMode = UrlMode.DROP) -> None:
        self._whitespace = WhitespaceFilter(out)
        push = self._whitespace.push
        self._inline: InlineFilter | None = None
        stages: list[Stage] = []
        if markdown:
            self._inline = InlineFilter(push)
            stages.append(self._inline)
            push = self._inline.push
        if urls is not UrlMode.KEEP:
            url_filter = UrlFilter(push, host=urls is UrlMode.HOST)
            stages.append(url_filter)
            push = url_filter.push
        if markdown:
            blocks = BlockFilter(push)
            stages.append(blocks)
            push = blocks.push
        characters = CharacterFilter(push)
        stages.append(characters)
        self._stages = stages[::-1]
        self.push = characters.push

    def settle(self) -> None:
        """Resolve pending characters at the end of the text."""
        for stage in self._stages:
            stage.settle()

    def flush(self) -> None:
        """Resolve pending characters as if the text ended here; more text may follow."""
        self.settle()
        self._whitespace.settle()

    def release_mark(self) -> None:
        """Emit a pending mark that ends a sentence, unless it begins an image; other pending characters stay."""
        if self._inline is not None:
            self._inline.release_mark()


class _Collector:
    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []

    def push(self, char: str, index: int) -> None:
        self.found.append((char, index))

    def space_follows(self) -> None:
        pass


def filter_text(text: str, *, markdown: bool = True, urls: UrlMode = UrlMode.DROP) -> list[tuple[str, int]]:
    """Filter a whole text; return the characters that are read, each with its offset in ``text``."""
    sink = _Collector()
    stage = TextFilter(sink, markdown=markdown, urls=urls)
    for index, char in enumerate(text):
        stage.push(char, index)
    stage.settle()
    return sink.found
