"""Compares the networks with reference outputs, stage by stage (``runner.run_parity``)."""
