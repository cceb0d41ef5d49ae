"""The files of the tiny bundles are read once, with few solver steps."""

from tests.unit.cosyvoice.conftest import files_are_read_once

__all__ = ["files_are_read_once"]
