"""gRPC: the TTS worker protocol, a session on one stream for our own client, and CosyVoice's service.

``server`` puts them on a port. The ``*_pb2*`` modules are generated from ``proto/`` by ``proto/generate.py``. Needs the
extra ``grpc``; importing this package alone needs nothing.
"""
