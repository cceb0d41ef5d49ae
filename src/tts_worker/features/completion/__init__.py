"""Completion of commands and options in a shell."""

from __future__ import annotations

from tts_worker.feature import Command, Feature

FEATURE = Feature(
    docs="deployment.md",
    commands={
        "completion": Command(
            "print the completion of commands and options for bash, zsh or fish",
            "tts_worker.features.completion.command",
            ("completion bash", "completion zsh", "completion fish"),
        )
    },
)
