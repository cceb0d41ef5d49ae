"""A simulator of whole workers: real clients, sessions, schedulers, batches, quotas and registry in one process.

Time, network, Redis and disk are simulated, and one seed decides everything: who calls, what is written and how it is
cut, what is stopped, paused or read slowly, and what fails. Properties hold at all times (``properties.ALWAYS``), and
rare states must be reached (``properties.SOMETIMES``).

    python -m tools.worker_simulator --seeds 1000
"""
