"""The instruction and the language that a text of CosyVoice clients begins with."""

from __future__ import annotations

import pytest

from tts_worker.errors import InvalidRequest
from tts_worker.front_end.instruction import split_instruction

CASES = [
    ("Hello there.", "Hello there.", None),
    ("用四川话说这句话<|endofprompt|>今天天气真好。", "今天天气真好。", "用四川话说这句话"),
    ("You are a helpful assistant.<|endofprompt|>Hi.", "Hi.", None),
    ("You are a helpful assistant. Whisper.<|endofprompt|> Hi.", " Hi.", "Whisper."),
    ("Whisper.<|endofprompt|><|endofprompt|>Hi.", "Hi.", "Whisper."),
    ("<|endofprompt|>Hi.", "Hi.", None),
    ("Whisper.<|endofprompt|>", "", "Whisper."),
]


@pytest.mark.parametrize(("text", "spoken", "instruct"), CASES)
def test_text_before_the_end_of_the_prompt_is_no_speech(text: str, spoken: str, instruct: str | None) -> None:
    assert split_instruction(text, None) == (spoken, instruct)


def test_instruction_of_the_request_wins() -> None:
    assert split_instruction("Whisper.<|endofprompt|>Hi.", "Shout.") == ("Hi.", "Shout.")


def test_long_instruction_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 2000"):
        split_instruction("x" * 2_001 + "<|endofprompt|>Hi.", None)
