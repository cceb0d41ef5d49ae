"""The section ``batch`` of the settings."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tts_worker.section import FeatureSection, Seconds


class BatchSettings(FeatureSection):
    """``/v1/batch``: many texts in one request.

    Attributes:
        directory: Where requests and results are kept: a batch then outlives the process, and workers that share the
            directory continue each other's. None keeps them in a temporary directory until the process ends.
        parallel: Items that are synthesized at the same time, over all batches; 0 accepts no batches.
        max_bytes: Texts and audio that are kept; beyond it the oldest finished batches of the same key are deleted.
            Those of one key may take half of it.
        keep_s: A batch is deleted after this time.
    """

    directory: Path | None = None
    parallel: int = Field(2, ge=0, le=1_000)
    max_bytes: int = Field(1_073_741_824, ge=1)
    keep_s: Seconds = 86_400.0


SECTIONS = {"batch": BatchSettings}
