"""Speech with the algorithms of the reference implementation: ``tts-worker say --compat reference``.

Also the path without caches that tests and ``tools/parity`` compare the streaming engine with.
"""
