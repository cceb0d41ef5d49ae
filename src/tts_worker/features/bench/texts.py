"""Texts that the benchmarks speak."""

from __future__ import annotations

import random

SENTENCES = (
    "The morning train was late again, so we walked along the river and talked about the summer.",
    "Your order has been shipped and should arrive on Thursday, probably before noon.",
    "I checked three hotels near the station, and the smallest one still has a room for you.",
    "If the red light stays on, hold the button for five seconds and let the machine restart.",
    "She opened the window, listened for a moment, and laughed at the noise of the birds.",
    "That is a good question; let me look it up while you tell me a little more about it.",
    "The museum opens at nine, but the garden behind it is free and open all day long.",
    "We can move the meeting to Friday, or I can call them and ask for another time.",
)


def paragraph(rng: random.Random, sentences: int) -> str:
    """Return a paragraph of random sentences, without repetition."""
    return " ".join(rng.sample(SENTENCES, min(sentences, len(SENTENCES))))
