"""These tests open the same bundles and graphs again and again, as those of the engine do."""

from __future__ import annotations

from tests.unit.cosyvoice.conftest import files_are_read_once, sessions_are_created_once

__all__ = ["files_are_read_once", "sessions_are_created_once"]
