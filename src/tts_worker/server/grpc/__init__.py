"""The gRPC ports: server, connections, keys of calls, and the models that a worker tells. Features add the services.

The modules need the extra ``grpc``. ``proto/generate.py`` generates the ``*_pb2*`` modules that services use.
"""

import os

# Nothing is forked without a new program, for which gRPC's handlers do nothing but write to standard error.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
