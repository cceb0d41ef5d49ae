"""Which workers there are: an entry per worker in Redis, renewed while it lives, gone when it does not.

``entry`` is what an entry looks like and what is believed of one, ``store`` the way to Redis, ``registrar`` a worker's
own heartbeat, ``directory`` what clients see. Redis holds nothing about sessions. Needs the extra ``redis``.
"""
