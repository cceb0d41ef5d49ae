"""``docs/agent.md`` describes every message of ``/v1/agent``."""

from __future__ import annotations

import re
from pathlib import Path

from tts_worker.features.agent import messages
from tts_worker.protocol.messages import Message, PongMessage

PAGE = (Path(__file__).parents[3] / "docs" / "agent.md").read_text("utf-8")


def test_every_message_is_documented_with_its_fields() -> None:
    kinds: list[type[Message]] = [PongMessage]
    kinds += (kind for kind in Message.__subclasses__() if kind.__module__ == messages.__name__)
    assert len(kinds) > 1
    rows = re.findall(r"(?m)^\| (`\w+`.*?) \| (.*?) \|", PAGE.partition("## The protocol of `/v1/agent`")[2])
    for kind in kinds:
        fields = {
            field for names, text in rows if f"`{kind.type_name()}`" in names for field in re.findall(r"\w+", text)
        }
        assert fields >= set(kind.__struct_fields__), kind.__name__
