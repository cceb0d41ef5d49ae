"""The files of the tiny bundles are read once, with few solver steps."""

from tests.unit.cosyvoice.conftest import few_solver_steps, files_are_read_once, sessions_are_created_once

__all__ = ["few_solver_steps", "files_are_read_once", "sessions_are_created_once"]
