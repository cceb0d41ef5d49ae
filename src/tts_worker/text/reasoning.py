"""Where reasoning and tool text of language models begins; ``blocks`` has where it ends.

The forms are those that models write into their answers when a server does not parse them: tags (``<think>``), pairs
of special tokens (``<|tool_call_begin|>``), the channels of the harmony format, markers before a call in JSON
(``[TOOL_CALLS]``), and a call in JSON on a line of its own.

Patterns have bounded length and one ``<`` or ``[`` each, so that undecided text is bounded.
"""

from __future__ import annotations

import re

from tts_worker.text.blocks import PREFIX, REASONING, Block, EnclosedBlock, JsonValue
from tts_worker.text.patience import UndecidedError

_NAMES = (
    rf"{REASONING}|tool_?calls?|function_calls?|invoke|tools|tool_(?:response|result|output|use|code)s?"
    r"|function_(?:response|result)s?"
)
_BRACKETED = "THINK|TOOL_RESULTS|TOOL_CONTENT|AVAILABLE_TOOLS"
_VALUES = r"[a-z][\w-]{0,30}=[^<>\n]{0,200}"
_OPENING = re.compile(
    rf"<(?:(?i:{PREFIX}(?P<tag>{_NAMES})(?: {{1,8}}(?:{_VALUES})?)?(?<!/)>"
    r"|(?P<function>function)(?:=|[ ]name=)[^<>\n]{0,99}>"
    r"|(?P<details>details)[ ][^<>\n]{0,60}?type=\"(?:reasoning|tool_calls|code_interpreter)\")"
    r"|(?P<bar>[|｜])(?P<begun>(?:tool|function|think|reason)[\w▁]{0,30}?)[_▁](?:begin|start)(?P=bar)>"
    r"|\|START_(?P<start>THINKING|ACTION|TOOL\w{0,20})\|>|\|(?P<half>channel|tool_call|tool_response|think)>"
    r"|\|(?:im_start(?P<role>\|>)|start_header_id(?P<header>\|>)|(?:channel|start)(?P<channel>\|>))"
    r"|\|(?:tool_call|python_tag)(?P<call>\|>))"
    rf"|\[(?P<bracket>{_BRACKETED})\]|\[TOOL_CALLS(?P<calls>\])"
)
_CUT = re.compile(
    rf"<(?:[/|｜\w:▁-]{{0,48}}|(?i:{PREFIX}(?:{_NAMES})[ ]{{1,8}}(?:[a-z][\w-]{{0,30}}(?:=[^<>\n]{{0,200}})?)?/?"
    r"|function(?:=[^<>\n]{0,99}|[ ](?:n(?:a(?:m(?:e(?:=[^<>\n]{0,99})?)?)?)?)?)|details[ ][^<>\n]{0,100}))\Z"
    r"|\[/?[A-Z_]{0,16}\Z"
)
"""What may become an opening or a stray closing at the end of the stream."""
_STRAY = re.compile(
    rf"<(?:(?i:/{PREFIX}(?:{_NAMES}|function|parameter)[ ]{{0,8}}>|{PREFIX}(?:{_NAMES})[ ]{{0,8}}/>)"
    rf"|[a-z_]{{1,20}}\|>|[|｜][\w▁/-]{{1,60}}[|｜]>)|\[/(?:{_BRACKETED})\]"
)
"""A closing without an opening, as of a model whose template has the opening; or another special token."""

_HEADER_LIMIT = 200
_HEADER = re.compile(
    r"[ \n]{0,8}[\w.-]{0,64}[ \n]?(?:\[CALL_ID\]\w{0,40})?(?:\[ARGS\])?[ \n]{0,8}(?=\{|\[[^A-Z])", re.DOTALL
)
"""What precedes the JSON of a call."""


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
        if header := _HEADER.match(text, end):
            return JsonValue(), header.end()
        if not is_final and len(text) <= end + _HEADER_LIMIT:
            raise UndecidedError
        return None, end
    if stray := _STRAY.match(text, at):
        return None, stray.end()
    if not is_final and _CUT.match(text, at):
        raise UndecidedError
    return None, 0


_JSON_TOKEN = re.compile(r'[ \n]{0,40}([\[{:,]|"[^"\n]{0,100}")')
_CUT_TOKEN = re.compile(r'[ \n]{0,40}(?:"[^"\n]{0,100})?\Z')
_CALL = re.compile(
    r'\[?\{(?:"(?:id|type|index)":"[^"]*",){0,3}'
    r'(?:"(?:tool_calls?|function_calls?|arguments)":|"(?:name|function|tool|tool_name|action|recipient_name)":'
    r'(?:\{"name":|"[^"]*",(?:"(?:id|type)":"[^"]*",)?"(?:arguments|args|parameters|params|input|action_input|tool_input)":))'
)
_CALL_KEYS = re.compile(
    r'\[?(?:\{(?:"(?:id|type|index|tool_calls?|function_calls?|arguments|name|function|tool|tool_name|action'
    r'|recipient_name)".*)?)?\Z'
)
_CALL_TOKENS = 22


def begins_call(text: str, at: int) -> bool:
    """Return whether a call in JSON begins at ``at``.

    Raises:
        UndecidedError: Its keys have not arrived.
    """
    found = ""
    for _ in range(_CALL_TOKENS):
        token = _JSON_TOKEN.match(text, at)
        if token is None:
            if _CUT_TOKEN.match(text, at):
                raise UndecidedError
            return False
        found += token[1]
        at = token.end()
        if _CALL.fullmatch(found):
            return True
        if not _CALL_KEYS.match(found):
            return False
    return False
