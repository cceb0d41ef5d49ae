"""Commands that list and play voices, add them, make voice packs, and download, check and convert model directories."""

from __future__ import annotations

from tts_worker.feature import Command, Feature

FEATURE = Feature(
    docs="cosyvoice.md",
    commands={
        "voices": Command(
            "list the voices, or play each",
            "tts_worker.features.voicepack.voices",
            ("voices", "voices listen", "voices --url http://127.0.0.1:8080"),
        ),
        "voice": Command(
            "add, list and import voices of a CosyVoice model directory",
            "tts_worker.features.voicepack.voice",
            ('voice add anna --bundle CosyVoice2-0.5B --audio prompt.wav --text "What is said in it."',),
        ),
        "voicepack": Command(
            "download, check or convert CosyVoice model directories, or create a voice pack",
            "tts_worker.features.voicepack.command",
            ("voicepack pull cosyvoice2-0.5b", "voicepack check CosyVoice2-0.5B"),
        ),
    },
)
