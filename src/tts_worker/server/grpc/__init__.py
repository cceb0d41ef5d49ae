"""gRPC services: the TTS worker protocol, the conversation service of our client, and CosyVoice's service.

``proto/generate.py`` generates the ``*_pb2*`` modules from ``proto/``. The modules need the extra ``grpc``.
"""
