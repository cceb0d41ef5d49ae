"""Readings of languages other than English: Chinese, and with the extra ``languages`` eight more.

The core finds them through ``language_readers``. Without the folder, text in these languages passes as it is written.

``chinese`` and ``worldwide`` scan a text from left to right by the rules of their ``tables``. ``worldwide`` reads eight
languages with num2words and CLDR (``words``); ``russian`` knows the cases of Russian.
"""

from __future__ import annotations

from tts_worker.feature import Extra, Feature

FEATURE = Feature(
    docs="text.md",
    extras={
        "languages": Extra(
            ("num2words", "babel"), "numbers, dates and units in languages other than English and Chinese"
        ),
    },
)
