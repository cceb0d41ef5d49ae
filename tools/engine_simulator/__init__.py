"""A simulated engine: the real shell, scheduler, chunk plan and output buffers over modeled stage times.

Nothing is computed, and no thread waits: every operation advances a virtual clock by the time that a ``StageTimes``
gives for its batch. What is modeled follows ``engine/cosyvoice``: prefill, decode bursts, flow and vocoder, one batch
of tokens and one of audio at a time, on one thread, with the flow on a thread of its own, or on two streams of a
device; prompts of voices, pages, faults in a batch and their isolation. Times that depend on the length of a sequence
are not modeled: a stage costs the same early and late in an utterance.

Pure: no clock, no tensors. The driver delivers commands and reads the clock (``tools/bench/simulate.py``).
"""
