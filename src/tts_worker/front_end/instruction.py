"""The instruction in a text of clients that write CosyVoice's prompt format themselves."""

from __future__ import annotations

from tts_worker.errors import InvalidRequest

END_OF_PROMPT = "<|endofprompt|>"
SYSTEM_PROMPT = "You are a helpful assistant."  # part of CosyVoice3's training data
MAX_CHARS = 2_000


def split_instruction(text: str, instruct: str | None) -> tuple[str, str | None]:
    """Split a whole text at its last ``<|endofprompt|>``: what precedes is an instruction, and is not spoken.

    A text that is streamed cannot be split: its beginning is spoken before the tag arrives.

    Args:
        text: The text of a request.
        instruct: The instruction of the request, which is preferred.

    Returns:
        The text to speak, and the instruction.

    Raises:
        InvalidRequest: The instruction is too long.
    """
    before, tag, spoken = text.rpartition(END_OF_PROMPT)
    if not tag:
        return text, instruct
    written = before.replace(END_OF_PROMPT, "").strip().removeprefix(SYSTEM_PROMPT).strip()
    if len(written) > MAX_CHARS:
        raise InvalidRequest(f"the instruction before {END_OF_PROMPT} may have at most {MAX_CHARS} characters")
    return spoken, instruct or written or None
