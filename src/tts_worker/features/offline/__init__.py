"""``say`` with CosyVoice: a model directory that speaks without a worker, in every mode, and voice conversion."""

from __future__ import annotations

from tts_worker.feature import Feature

FEATURE = Feature(docs="cosyvoice.md", say="tts_worker.features.offline.say")
