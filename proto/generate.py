"""Generate the Python modules of the protocols: ``python proto/generate.py [FOLDER]`` (needs grpcio-tools).

The default folder is the one in the package. Absolute imports written by protoc become imports from the package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).parent
HOME = PROTO.parent / "src" / "tts_worker" / "transports" / "grpc"
PACKAGE = "tts_worker.transports.grpc"


def generate(folder: Path = HOME) -> list[Path]:
    """Write the modules into ``folder`` and return their paths.

    Raises:
        RuntimeError: protoc rejected the files.
    """
    protos = sorted(path.name for path in PROTO.glob("*.proto"))
    arguments = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{PROTO}", *arguments, *protos]) != 0:
        raise RuntimeError("protoc rejected the files; see its message above")
    for module in folder.glob("*_pb2_grpc.py"):
        text = module.read_text("utf-8")
        module.write_text(re.sub(r"^import (\w+_pb2) as", rf"from {PACKAGE} import \1 as", text, flags=re.M), "utf-8")
    return sorted(folder.glob("*_pb2*"))


if __name__ == "__main__":
    for written in generate(*map(Path, sys.argv[1:2])):
        print(written)
