"""Worker discovery through Redis: one expiring entry per worker, renewed by a heartbeat. Needs the extra ``redis``.

``entry`` defines and validates entries, ``signature`` signs them, ``store`` accesses Redis, ``directory`` lists
workers for clients; the feature ``fleet`` publishes the entry of a worker. Redis holds no session state.
"""
