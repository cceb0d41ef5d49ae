"""Proof, stage by stage, that our networks give the reference's numbers: ``run_parity(bundle_dir, golden_dir)``."""

from tts_worker.parity.report import Check, ParityReport, Status
from tts_worker.parity.runner import run_parity

__all__ = ["Check", "ParityReport", "Status", "run_parity"]
