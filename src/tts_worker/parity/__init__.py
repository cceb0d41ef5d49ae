"""Compares the networks with reference outputs, stage by stage: ``run_parity(bundle_dir, golden_dir)``."""

from tts_worker.parity.report import Check, ParityReport, Status
from tts_worker.parity.runner import run_parity

__all__ = ["Check", "ParityReport", "Status", "run_parity"]
