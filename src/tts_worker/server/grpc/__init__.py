"""gRPC services: the TTS worker protocol, the conversation service of our client, and CosyVoice's service.

``proto/generate.py`` generates the ``*_pb2*`` modules from ``proto/``. The modules need the extra ``grpc``.
"""

import os

# Nothing is forked without a new program, for which gRPC's handlers do nothing but write to standard error.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
