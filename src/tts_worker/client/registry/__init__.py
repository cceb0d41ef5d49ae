"""Worker discovery through Redis: one expiring entry per worker, renewed by a heartbeat. Needs the extra ``redis``.

``entry`` defines and validates entries, ``signature`` signs them, ``store`` accesses Redis, ``registrar`` publishes a
worker's entry, and ``directory`` lists workers for clients. Redis holds no session state.
"""
