"""The layering of the package: which modules may import which, and where some libraries are allowed."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tts_worker.feature import SECTIONS

PACKAGE = Path(__file__).parents[2] / "src" / "tts_worker"

# Lowest first. A module belongs to the row with its longest matching prefix and may import from that row and below.
ROWS: tuple[tuple[str, ...], ...] = (
    ("types", "errors", "callers", "__init__"),
    ("protocol",),
    (
        *(
            "text",
            "front_end",
            "audio",
            "metrics",
            "logs",
            "tracing",
            "gpus",
            "models.bundles",
            "timeouts",
            "safe_yaml",
        ),
        "atomic_files",
    ),
    ("voices",),
    ("settings",),
    (
        "session.machine",
        "session.utterance",
        "session.pacer",
        "session.slots",
        "engine.base",
        "engine.scheduler",
        "engine.shell",
        "engine.output_buffer",
        "engine.phases",
        "engine.cosyvoice.audio.chunks",
        "engine.cosyvoice.phases",
        "engine.cosyvoice.tokens.guard",
        "engine.cosyvoice.timings",
    ),
    ("engine",),
    ("models", "session"),
    ("server", "registry", "adapter"),
    ("feature", "worker", "grpc_serving", "serving"),
    ("client",),  # creates workers: "local:" in this process
    ("integrations",),
    ("cli", "__main__", "commands", "benchmarks"),
    ("features",),
)
PURE = ROWS[1] + ROWS[5]
"""Modules without a clock, thread, event loop or tensor."""

EXTRAS = (
    "torch",
    "tokenizers",
    "onnx",
    "wetext",
    "num2words",
    "babel",
    "livekit",
    "pipecat",
    "aiortc",
    "grpc",
    "redis",
    "ray",
    "httpx",
    "faster_whisper",
)
"""Third-party packages that are not in the base install."""


@dataclass(frozen=True)
class Import:
    importer: str  # without "tts_worker."
    imported: str  # with "tts_worker." for modules of this package
    line: int
    at_module_level: bool


@cache
def _modules() -> dict[str, Path]:
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue  # generated
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return names


@cache
def _imports() -> tuple[Import, ...]:
    return tuple(found for name, path in _modules().items() for found in _imports_of(name, path))


def _imports_of(name: str, path: Path) -> Iterator[Import]:
    for node, at_module_level in _import_statements(ast.parse(path.read_text("utf-8")), True):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            ours = {f"{module}.{alias.name}" for alias in node.names} & _our_names()
            for imported in ours or {module}:
                yield Import(name, imported, node.lineno, at_module_level)
        else:
            for alias in node.names:
                yield Import(name, alias.name, node.lineno, at_module_level)


def _import_statements(node: ast.AST, at_module_level: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield the imports inside ``node`` except those for types only, and whether they run when it is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_module_level
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _import_statements(child, False)
        elif isinstance(child, ast.expr) or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            continue  # an expression holds no statement
        else:
            yield from _import_statements(child, at_module_level)


@cache
def _our_names() -> frozenset[str]:
    return frozenset(f"tts_worker.{known}" for known in _modules())


def _row(module: str) -> int:
    candidates = [
        (len(prefix), row)
        for row, names in enumerate(ROWS)
        for prefix in names
        if module == prefix or module.startswith(f"{prefix}.")
    ]
    assert candidates, f"{module} belongs to no layer: add it to ROWS"
    return max(candidates)[1]


def _describe(found: Import) -> str:
    return f"{found.importer}:{found.line} imports {found.imported}"


def test_layers_import_only_lower_layers() -> None:
    ours = [f for f in _imports() if f.imported.startswith("tts_worker.") and f.importer != "__init__"]
    wrong = [_describe(f) for f in ours if _row(f.imported.removeprefix("tts_worker.")) > _row(f.importer)]
    assert not wrong, "\n".join(wrong)
    assert len(ours) > 300


def _feature(module: str) -> str | None:
    """Return the feature that a module of this package belongs to, None for the core."""
    parts = module.split(".")
    return parts[1] if parts[0] == "features" and len(parts) > 1 else None


def test_core_imports_no_feature_and_features_not_each_other() -> None:
    """Imports for types and those inside functions count, too."""
    wrong = [
        f"{name}:{node.lineno} imports {module}"
        for name, path in _modules().items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in _imported_modules(node)
        if (imported := _feature(module)) is not None and imported != _feature(name)
    ]
    assert not wrong, "\n".join(wrong)
    assert {_feature(name) for name in _modules()} == {None, *SECTIONS}


def _imported_modules(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for alias in node.names:
        module = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        yield module.removeprefix("tts_worker.")


def test_records_of_features_are_cheap_to_read() -> None:
    """Commands read them, also ``tts-worker --help``."""
    code = (
        "import sys; from tts_worker.feature import features; features()\n"
        "print([each for each in ('numpy', 'pydantic', 'starlette', 'tts_worker.settings') if each in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_acceleration_is_imported_only_by_name() -> None:
    """The plain path must work without the folder: ``engine.cosyvoice.execution.plan`` looks for it."""
    folder = "engine.cosyvoice.acceleration"
    about_it = (folder, "commands.doctor_acceleration", "commands.export")
    wrong = [
        _describe(found)
        for found in _imports()
        if found.imported.startswith(f"tts_worker.{folder}") and not found.importer.startswith(about_it)
    ]
    assert not wrong, "\n".join(wrong)


def test_package_does_not_need_the_tools() -> None:
    """``tools`` is not installed."""
    assert [_describe(found) for found in _imports() if found.imported.split(".")[0] == "tools"] == []


def test_sessions_and_engines_do_not_import_each_other() -> None:
    wrong = [
        _describe(found)
        for found in _imports()
        if (found.importer.startswith("engine") and found.imported.startswith("tts_worker.session"))
        or (found.importer.startswith("session") and found.imported.startswith("tts_worker.engine"))
        or (found.importer.startswith("server") and found.imported.startswith("tts_worker.engine"))
    ]
    assert not wrong, "\n".join(wrong)


def test_pure_modules_import_no_io() -> None:
    impure = {"asyncio", "time", "threading", "torch", "socket", "random", "datetime"}
    wrong = [
        _describe(found)
        for found in _imports()
        if found.importer.startswith(PURE) and found.imported.split(".")[0] in impure
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_engine_loop_uses_asyncio_in_engines() -> None:
    users = {found.importer for found in _imports() if found.imported == "asyncio"}
    assert {user for user in users if user.startswith("engine")} == {"engine.loop", "engine.process", "engine.handle"}


def test_torch_is_imported_only_by_engines_and_tools() -> None:
    allowed = (
        "engine",
        "commands.doctor",
        "commands.export",
    )
    wrong = [
        _describe(found)
        for found in _imports()
        if found.imported.split(".")[0] == "torch" and not found.importer.startswith(allowed)
    ]
    assert not wrong, "\n".join(wrong)


def test_cosyvoice_needs_only_a_pytorch_machine() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "torch", "tokenizers", "safetensors", "yaml", "tts_worker"}
    wrong = [
        _describe(found)
        for found in _imports()
        if found.importer.startswith("engine.cosyvoice")
        and found.at_module_level
        and found.imported.split(".")[0] not in {*allowed, *(["triton"] if found.importer.endswith("_triton") else [])}
    ]
    assert not wrong, "\n".join(wrong)


def test_triton_is_imported_only_by_launches() -> None:
    """Triton is part of PyTorch's CUDA builds only."""
    wrong = [
        _describe(found)
        for found in _imports()
        if found.imported.endswith("_triton")
        or (found.imported.split(".")[0] == "triton" and not found.importer.endswith("_triton"))
    ]
    assert not wrong, "\n".join(wrong)


WALL_CLOCK = ("registry", "features.fleet", "features.tracing", "server.tokens")


def test_wall_clock_is_used_only_where_processes_agree_on_it() -> None:
    """Durations must come from a monotonic clock; ``time.time`` can jump."""
    wrong = [
        f"{name}:{node.lineno}"
        for name, path in _modules().items()
        if "time.time" in path.read_text("utf-8") and not name.startswith(WALL_CLOCK)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "time.time"
    ]
    assert not wrong, "\n".join(wrong)


def test_named_tuples_have_one_base() -> None:
    """Python 3.10 refuses a generic one when the module is imported; neither ruff nor mypy knows."""
    wrong = [
        f"{name}:{node.lineno}"
        for name, path in _modules().items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and len(node.bases) > 1 and "NamedTuple" in map(ast.unparse, node.bases)
    ]
    assert not wrong, "\n".join(wrong)


def test_opentelemetry_is_imported_late_and_only_for_traces() -> None:
    users = {(each.importer, each.at_module_level) for each in _imports() if each.imported.startswith("opentelemetry")}
    assert users == {("features.tracing.traces", False)}


def test_client_imports_only_its_own_modules() -> None:
    """The files of the distribution tts-worker-client are listed in its ``hatch_build.py``."""
    pytest.importorskip("hatchling", reason="needs the build backend hatchling")
    script = PACKAGE.parents[1] / "packages" / "tts-worker-client" / "hatch_build.py"
    spec = importlib.util.spec_from_file_location("hatch_build", script)
    assert spec is not None
    assert spec.loader is not None
    hatch_build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hatch_build)
    files = {PACKAGE / file for file in hatch_build.client_files(PACKAGE)}
    client = {name for name, path in _modules().items() if path in files}
    assert {"client", "client.grpc", "protocol.messages", "types"} <= client
    wrong = [
        _describe(found)
        for found in _imports()
        if found.importer in client
        and found.imported.startswith("tts_worker.")
        and found.imported.removeprefix("tts_worker.") not in client
        and not found.imported.startswith("tts_worker.protocol.tts_worker_pb2")
        # The server is imported when a worker is created in this process.
        and (found.importer, found.at_module_level) != ("__init__", False)
    ]
    assert not wrong, "\n".join(wrong)


BASE_MODULES = (
    "worker",
    "serving",
    "adapter",
    "cli",
    "server.http",
    "client",
    "session.hub",
    "engine.cpu.hibari.engine",
    "engine.tone",
    "commands.say",
    "commands.serve",
    "features.agent.command",
    "commands.doctor",
)


def test_base_install_needs_no_extra() -> None:
    block = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {EXTRAS!r}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        f"import {', '.join(f'tts_worker.{module}' for module in BASE_MODULES)}\n"
    )
    result = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2_000:]
