"""Where reasoning and tool text of language models begins; ``data/blocks.tsv`` has both ends.

The forms are those that models write into their answers when a server does not parse them: tags (``<think>``), pairs
of special tokens (``<|tool_call_begin|>``), the channels of the harmony format, markers before a call in JSON
(``[TOOL_CALLS]``), and a call in JSON on a line of its own.
"""

from __future__ import annotations

import re

from tts_worker.text.blocks import Block, EnclosedBlock, JsonValue, block_kinds
from tts_worker.text.patience import UndecidedError
from tts_worker.text.tables import PATTERNS

_OPENING = re.compile("|".join(opening for _, opening, *_ in block_kinds() if opening))
_HEADER_LIMIT = 200
_CALL_TOKENS = 22


def begin(text: str, at: int, *, is_final: bool) -> tuple[Block | None, int]:
    """Return what is skipped from ``at`` on, and where that begins to end.

    Without a block, the text up to the place is dropped: a closing without an opening, a special token. The place is 0
    if there is nothing to drop.

    Raises:
        UndecidedError: More text must arrive.
    """
    if text[at] == "[" and text[at + 1 : at + 2] not in ("", "/", "A", "T"):
        return None, 0
    if opening := _OPENING.match(text, at):
        kind, end = str(opening.lastgroup), opening.end()
        if kind not in ("call", "calls"):
            return EnclosedBlock(kind, opening[kind]), at if kind == "channel" else end
        if header := PATTERNS["CALL_HEADER"].match(text, end):
            return JsonValue(), header.end()
        if not is_final and len(text) <= end + _HEADER_LIMIT:
            raise UndecidedError
        return None, end
    if stray := PATTERNS["STRAY"].match(text, at):
        return None, stray.end()
    if not is_final and PATTERNS["CUT_OPENING"].match(text, at):
        raise UndecidedError
    return None, 0


def begins_call(text: str, at: int) -> bool:
    """Return whether a call in JSON begins at ``at``.

    Raises:
        UndecidedError: Its keys have not arrived.
    """
    found = ""
    for _ in range(_CALL_TOKENS):
        token = PATTERNS["JSON_TOKEN"].match(text, at)
        if token is None:
            if PATTERNS["CUT_TOKEN"].match(text, at):
                raise UndecidedError
            return False
        found += token[1]
        at = token.end()
        if PATTERNS["CALL"].fullmatch(found):
            return True
        if not PATTERNS["CUT_CALL"].match(found):
            return False
    return False
