"""Speech with the algorithms of the reference implementation: ``python -m tools.reference``.

Also the path without caches that tests and ``tools/parity`` compare the streaming engine with.
"""
