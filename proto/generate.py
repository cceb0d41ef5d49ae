"""Generate the Python modules of the protocols: ``python proto/generate.py [FOLDER]``.

The default folder is ``src``. Absolute imports written by protoc become imports from the package. Generated code
rejects a grpcio and protobuf older than those of its compiler, so the compiler is that of the oldest versions that the
client supports. It needs a separate environment, because a newer protobuf is installed for the tests:

    python -m venv ENV && ENV/bin/pip install grpcio-tools==1.75.1 && ENV/bin/python proto/generate.py
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).parent
SOURCE = PROTO.parent / "src"
PACKAGES = {"tts_worker": "tts_worker.protocol", "cosyvoice": "tts_worker.features.compat"}
"""Package of the modules generated from each file."""
COMPILER = "1.75.1"
"""Version of grpcio-tools that the committed modules are generated with."""


def generate(root: Path = SOURCE) -> list[Path]:
    """Write the modules into the packages below ``root`` and return their paths.

    Raises:
        RuntimeError: protoc rejected the files.
    """
    written: list[Path] = []
    for name, package in PACKAGES.items():
        folder = root.joinpath(*package.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        arguments = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(["protoc", f"-I{PROTO}", *arguments, f"{name}.proto"]) != 0:
            raise RuntimeError("protoc rejected the files; see its message above")
        stubs = folder / f"{name}_pb2_grpc.py"
        text = stubs.read_text("utf-8")
        stubs.write_text(re.sub(r"^import (\w+_pb2) as", rf"from {package} import \1 as", text, flags=re.M), "utf-8")
        written += sorted(folder.glob(f"{name}_pb2*"))
    return written


if __name__ == "__main__":
    if (version := importlib.metadata.version("grpcio-tools")) != COMPILER:
        sys.exit(f"grpcio-tools {version} is installed: generate with grpcio-tools=={COMPILER} in its own environment")
    for written in generate(*map(Path, sys.argv[1:2])):
        print(written)
