"""What is read aloud and what is not: Markdown, tags, URLs, emoji and invisible characters are taken out.

Owns the order of the stages (characters, lines, URLs, marks within a line, spaces). Every character that comes out
stands for exactly one original character, whose offset comes with it, in order. Each stage is an automaton over single
characters, so the result never depends on how the text was cut, and the work is linear. It knows nothing of segments.
Outside an open mark the delay is one character; an open ``[`` or ``<`` delays by at most some 300.
"""

from __future__ import annotations

from typing import Protocol

from tts_worker.text.blocks import BlockFilter
from tts_worker.text.character_filter import CharacterFilter
from tts_worker.text.inline import InlineFilter
from tts_worker.text.urls import UrlFilter, UrlMode
from tts_worker.text.whitespace import TextSink, WhitespaceFilter

__all__ = ["TextFilter", "UrlMode", "filter_text"]


class Stage(Protocol):
    def settle(self) -> None: ...


class TextFilter:
    """Pushes readable text to ``out``. ``markdown=False`` leaves markup and tags alone and drops only characters and
    (by ``urls``) URLs."""

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
        """The text ended: decide what is held back."""
        for stage in self._stages:
            stage.settle()

    def flush(self) -> None:
        """Decide what is held back as if the text ended here, though more may come."""
        self.settle()
        self._whitespace.settle()

    def release_mark(self) -> None:
        """Pass on a mark that ends a sentence unless it begins an image; what else is held back stays."""
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
    """A whole text at once: the characters that are read, each with its offset in ``text``."""
    sink = _Collector()
    stage = TextFilter(sink, markdown=markdown, urls=urls)
    for index, char in enumerate(text):
        stage.push(char, index)
    stage.settle()
    return sink.found
