"""The layering of the package: which modules may import which, and where some libraries are allowed."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.unit.ceilings import PACKAGE, ceilings, code_lines, measured
from tts_worker.feature_names import SECTIONS

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "logs", "tracing", "gpus", "atomic_files", "safe_yaml", "timeouts"),
    ("feature_names", "finding", "section", "version"),
    ("types", "callers", "models"),
    ("protocol", "text", "metrics"),
    ("front_end",),
    ("audio", "client"),
    ("voices", "integrations"),
    ("settings",),
    ("session", "engine"),
    ("adapter", "server"),
    ("feature",),
    ("worker", "cli"),
    ("local", "grpc_serving", "__init__", "__main__"),
    ("serving",),
    ("commands",),
    ("features",),
)
"""The folders and files of the package, lowest first: each may import what is in lower rows."""

PURE = (
    "protocol",
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
)
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
    for_types: bool = False  # only a type checker sees it


@cache
def _modules() -> dict[str, Path]:
    """Return the modules by their name in the package, a folder's ``__init__`` by that of the folder."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return names


@cache
def _all_imports() -> tuple[Import, ...]:
    """Return all imports, also those for types only."""
    written = {name: path for name, path in _modules().items() if not name.endswith(("_pb2", "_pb2_grpc"))}
    return tuple(found for name, path in written.items() for found in _imports_of(name, path))


@cache
def _imports() -> tuple[Import, ...]:
    """Return the imports that are made when the program runs."""
    return tuple(found for found in _all_imports() if not found.for_types)


def _imports_of(name: str, path: Path) -> Iterator[Import]:
    for node, at_module_level, for_types in _import_statements(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            ours = {f"{module}.{alias.name}" for alias in node.names} & _our_names()
            for imported in ours or {module}:
                yield Import(name, imported, node.lineno, at_module_level, for_types)
        else:
            for alias in node.names:
                yield Import(name, alias.name, node.lineno, at_module_level, for_types)


def _import_statements(
    node: ast.AST, at_module_level: bool = True, for_types: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Yield the imports inside ``node``, whether they run when it is imported, and whether they are for types only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_module_level, for_types
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _import_statements(child, False, for_types)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _import_statements(child, False, True)
        elif not isinstance(child, ast.expr):  # an expression holds no statement
            yield from _import_statements(child, at_module_level, for_types)


@cache
def _our_names() -> frozenset[str]:
    return frozenset(f"tts_worker.{known}" for known in _modules())


def _our_imports() -> list[tuple[Import, str]]:
    """Return the imports of this package's modules, and the name of each in the package."""
    return [
        (found, found.imported.removeprefix("tts_worker").removeprefix(".") or "__init__")
        for found in _all_imports()
        if found.imported.split(".")[0] == "tts_worker"
    ]


def _describe(found: Import) -> str:
    return f"{found.importer}:{found.line} imports {found.imported}"


def test_packages_import_only_lower_layers() -> None:
    """Imports for types and those inside functions count, too."""
    layer = {name: number for number, names in enumerate(LAYERS) for name in names}
    assert layer.keys() == {name.split(".")[0] for name in _modules()}
    wrong = [
        _describe(found)
        for found, imported in _our_imports()
        if (importing := found.importer.split(".")[0]) != imported.split(".")[0]
        and layer[importing] <= layer[imported.split(".")[0]]
    ]
    assert not wrong, "\n".join(wrong)
    assert len(_our_imports()) > 1_000


def _ways(module: str) -> tuple[str, ...]:
    """Return the folders on the way to a module, and its file."""
    parts = tuple(module.split("."))
    is_folder = module != "__init__" and _modules()[module].name == "__init__.py"
    return (*parts, "__init__") if is_folder else parts


def test_no_folder_has_a_circle() -> None:
    """The files and folders inside each folder can be put in an order in which each imports only earlier ones."""
    arrows: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for found, imported in _our_imports():
        ways = _ways(found.importer), _ways(imported)
        if ways[0] != ways[1]:
            common = next(at for at, (one, other) in enumerate(zip(*ways, strict=False)) if one != other)
            arrows[".".join(ways[0][:common])][ways[0][common]].add(ways[1][common])
    circles = []
    for folder, graph in arrows.items():
        try:
            tuple(TopologicalSorter(graph).static_order())
        except CycleError as error:
            circles.append(f"{folder or 'tts_worker'}: {' <- '.join(error.args[1])}")
    assert circles == [], "\n".join(circles)
    assert {"", "session", "client", "engine", "engine.cosyvoice"} <= arrows.keys()


def test_packages_stay_below_their_ceilings() -> None:
    lines, limits = measured(), ceilings()
    assert lines.keys() == limits.keys(), "update the table as tests/unit/ceilings.py says"
    above = [f"{name}: {lines[name]}, at most {limits[name]}" for name in lines if lines[name] > limits[name]]
    assert not above, "\n".join(above)
    # Ceilings fall with the code.
    loose = [f"{name}: {lines[name]}" for name in lines if limits[name] > 1.03 * lines[name] + 10]
    assert not loose, f"lower the ceilings as tests/unit/ceilings.py says: {', '.join(loose)}"


def test_code_lines_leave_out_blank_lines_comments_and_docstrings() -> None:
    source = '"""Two\nlines."""\n\n# comment\nx = (\n    1,\n)\n\ndef f():\n    """Doc."""\n    return """a\nb"""\n'
    assert code_lines(source) == 6


def _feature(module: str) -> str | None:
    """Return the feature that a module of this package belongs to, None for the core."""
    parts = module.split(".")
    return parts[1] if parts[0] == "features" and len(parts) > 1 else None


def test_core_imports_no_feature_and_features_not_each_other() -> None:
    """Imports for types and those inside functions count, too."""
    wrong = [
        _describe(found)
        for found, imported in _our_imports()
        if _feature(imported) not in (None, _feature(found.importer))
    ]
    assert not wrong, "\n".join(wrong)
    assert {_feature(name) for name in _modules()} == {None, *SECTIONS}


def test_records_of_features_are_cheap_to_read() -> None:
    """Commands read them, also ``tts-worker --help``."""
    code = (
        "import sys; from tts_worker.feature import features; features()\n"
        "print([each for each in ('numpy', 'pydantic', 'starlette', 'tts_worker.settings') if each in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_package_does_not_need_the_tools() -> None:
    """``tools`` is not installed."""
    assert [_describe(found) for found in _imports() if found.imported.split(".")[0] == "tools"] == []


def test_server_does_not_import_engines() -> None:
    wrong = [
        _describe(found)
        for found, imported in _our_imports()
        if found.importer.startswith("server") and imported.startswith("engine")
    ]
    assert not wrong, "\n".join(wrong)


def test_pure_modules_import_no_io() -> None:
    impure = {"asyncio", "time", "threading", "torch", "socket", "random", "datetime"}
    wrong = [
        _describe(found)
        for found in _imports()
        if found.importer.startswith(PURE) and found.imported.split(".")[0] in impure
    ]
    wrong += [
        _describe(found)
        for found, imported in _our_imports()
        if found.importer.startswith(PURE)
        and imported.startswith(("engine", "session"))
        and not imported.startswith(PURE)
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_engine_loop_uses_asyncio_in_engines() -> None:
    users = {found.importer for found in _imports() if found.imported == "asyncio"}
    assert {user for user in users if user.startswith("engine")} == {"engine.loop", "engine.process", "engine.handle"}


def test_torch_is_imported_only_by_engines_and_tools() -> None:
    allowed = (
        "engine",
        "commands.doctor",
        "features.acceleration",
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
        if found.importer.startswith(("engine.cosyvoice", "features.acceleration"))
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


WALL_CLOCK = ("client.registry", "features.fleet", "features.tracing", "server.tokens")


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
        if "NamedTuple" in path.read_text("utf-8")
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
    "features.voicepack.command",
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
