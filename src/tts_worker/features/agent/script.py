"""Answers from a script, for a conversation without a language model.

The script has no memory: like a model it is sent the messages of the conversation, and these hold of its answers what
the user heard. An interrupted answer is continued from there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence

from tts_worker.features.agent.conversation import Message

DEMONSTRATION = (
    "Hello, I am the talking agent of this worker. No language model is connected, so I answer from a script. "
    "Interrupt me whenever you like: speak, or type something. I fall silent at once, and the worker reports which of "
    "my words you have heard. Only those words stay in my memory. The others are struck out on this page, and I do not "
    "know that I ever wrote them.",
    "Text reaches the voice while it is still being written, so you hear the beginning of a sentence before its end "
    "exists. Each word on the page turns dark at the moment you hear it. If you cough, I wait for a second, and then I "
    "go on at the very same sample. If you say words, I stop.",
    "An agent that forgets where it was interrupted believes that you know things which you never heard. That is why "
    "telephone agents repeat themselves, or skip the one thing you asked for. With a playback report that does not "
    "happen. To give me a mind of my own, start this command with the address of a model.",
    "That was all that I have to say. Ask something once more, and I begin again.",
)
"""What the agent says without a model, one answer each."""

_QUOTED_WORDS = 12
_LAST_WORDS = 4


class ScriptedModel:
    """Says the paragraphs of a script in turn.

    Args:
        paragraphs: What it says, at least one.
    """

    name = "script"

    def __init__(self, paragraphs: Sequence[str] = DEMONSTRATION) -> None:
        self._paragraphs = tuple(" ".join(paragraph.split()) for paragraph in paragraphs)

    async def reply(self, messages: Sequence[Message]) -> AsyncGenerator[str, None]:
        """Answer the last message, word by word."""
        for word in _words(self.answer(messages)):
            yield word

    def answer(self, messages: Sequence[Message]) -> str:
        """Return the answer to the last message: the next paragraph, or the rest of the one that was interrupted."""
        paragraph = 0
        offset = 0
        said = heard = ""
        for message in messages:
            if message["role"] == "user":
                said = message["content"]
            elif message["role"] == "assistant":
                opening, rest = self._compose(said, heard, paragraph, offset)
                heard = message["content"]
                offset = len(self._paragraphs[paragraph]) - len(rest) + max(0, len(heard) - len(opening))
                if len(heard) >= len(opening) + len(rest):
                    paragraph, offset, heard = (paragraph + 1) % len(self._paragraphs), 0, ""
        return "".join(self._compose(said, heard, paragraph, offset))

    def _compose(self, said: str, heard: str, paragraph: int, offset: int) -> tuple[str, str]:
        """Return what precedes the text of the script, and that text.

        Args:
            said: What the user said.
            heard: What the user heard of the previous answer if it was interrupted.
            paragraph: Index of the paragraph.
            offset: Characters of it that were heard.
        """
        rest = self._paragraphs[paragraph][offset:].lstrip()
        opening = f'You said: "{_first_words(said)}" ' if any(each.isalnum() for each in said) else ""
        if heard:
            opening += f'You heard me until "{_last_words(heard)}". I go on from there: '
        return opening, rest


def _words(text: str) -> Iterator[str]:
    for index, word in enumerate(text.split(" ")):
        yield f" {word}" if index else word


def _first_words(text: str) -> str:
    words = text.split()
    return " ".join(words[:_QUOTED_WORDS]) + (" ..." if len(words) > _QUOTED_WORDS else "")


def _last_words(text: str) -> str:
    return " ".join(text.split()[-_LAST_WORDS:]).strip('".,:;!? ')
