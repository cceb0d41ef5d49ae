"""What the doctor says about ONNX Runtime's builds and providers, with metadata of made-up installations."""

from __future__ import annotations

import base64
import hashlib
import importlib
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from tts_worker.engine.cosyvoice.execution.onnx_providers import CPU, CUDA, TENSORRT
from tts_worker.features.acceleration import onnx_checks
from tts_worker.features.acceleration.onnxruntime_builds import diagnose, imported_folder, installed_builds
from tts_worker.finding import Finding, Status

INSTALL = 'pip install "."'
CPU_BUILD = ("onnxruntime", "1.31.1")
GPU_BUILD = ("onnxruntime-gpu", "1.30.0")


def install(site: Path, build: tuple[str, str]) -> None:
    """Do what pip does: write the files over what is there, and the record of what was written."""
    name, version = build
    files = {
        "onnxruntime/__init__.py": f"name = {name!r}\n",
        "onnxruntime/capi/build_and_package_info.py": f"package_name = {name!r}\n",
        f"onnxruntime/capi/{name}.so": name * 100,
    }
    record = ""
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{record}{info.name}/METADATA,,\n{info.name}/RECORD,,\n")


def uninstall(site: Path, build: tuple[str, str]) -> None:
    """Do what pip does: delete every recorded file, even if another build wrote it last."""
    info = site / f"{build[0].replace('-', '_')}-{build[1]}.dist-info"
    for line in (info / "RECORD").read_text().splitlines():
        if line.startswith("onnxruntime/"):
            (site / line.split(",")[0]).unlink(missing_ok=True)
    shutil.rmtree(info)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty site-packages, and nothing else on the path."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    importlib.invalidate_caches()
    return folder


def diagnosis() -> tuple[bool, str, str]:
    importlib.invalidate_caches()
    found = diagnose(installed_builds(), imported_folder(), INSTALL)
    return found.works, found.detail, found.advice


@pytest.mark.parametrize("build", [CPU_BUILD, GPU_BUILD])
def test_single_build_is_fine(site: Path, build: tuple[str, str]) -> None:
    install(site, build)
    assert diagnosis() == (True, " ".join(build), "")


def test_no_build_names_the_command(site: Path) -> None:
    assert diagnosis() == (False, "not installed", INSTALL)


@pytest.mark.parametrize(("first", "last"), [(CPU_BUILD, GPU_BUILD), (GPU_BUILD, CPU_BUILD)])
def test_two_builds_in_one_folder_say_whose_files_are_live(
    site: Path, first: tuple[str, str], last: tuple[str, str]
) -> None:
    install(site, first)
    install(site, last)
    works, detail, advice = diagnosis()
    assert not works
    assert f"overwrite each other in {site / 'onnxruntime'}; the files are those of {' '.join(last)}" in detail
    assert advice.startswith(f"pip uninstall -y onnxruntime onnxruntime-gpu && {INSTALL} && ")
    assert f'pip install --no-deps --target "{Path(sys.prefix) / "onnxruntime-gpu"}" onnxruntime-gpu' in advice


def test_mixture_of_two_builds_is_told(site: Path) -> None:
    install(site, CPU_BUILD)
    install(site, GPU_BUILD)
    (site / "onnxruntime" / "__init__.py").write_text("name = 'onnxruntime'\n")
    assert diagnosis()[1].endswith("the files are a mixture")


def test_removing_one_of_two_builds_damages_the_other(site: Path) -> None:
    install(site, CPU_BUILD)
    install(site, GPU_BUILD)
    uninstall(site, CPU_BUILD)
    works, detail, advice = diagnosis()
    assert not works
    assert detail == "onnxruntime-gpu 1.30.0: 2 of 3 files are missing or from another build"
    assert advice == 'pip install --force-reinstall --no-deps "onnxruntime-gpu==1.30.0"'


def test_builds_in_two_folders_do_not_disturb_each_other(site: Path, tmp_path: Path) -> None:
    target = tmp_path / "onnxruntime-gpu"
    target.mkdir()
    install(site, CPU_BUILD)
    install(target, GPU_BUILD)
    assert diagnosis() == (True, "onnxruntime 1.31.1", "")
    sys.path.insert(0, str(target))  # what PYTHONPATH does
    assert diagnosis() == (True, "onnxruntime-gpu 1.30.0; not imported: onnxruntime 1.31.1", "")


def test_vanished_package_is_installed_again(site: Path) -> None:
    install(site, CPU_BUILD)
    shutil.rmtree(site / "onnxruntime")
    works, detail, advice = diagnosis()
    assert (works, detail) == (False, "onnxruntime 1.31.1: its files are gone")
    assert advice == 'pip install --force-reinstall --no-deps "onnxruntime==1.31.1"'


def test_installation_of_this_machine_is_understood() -> None:
    assert diagnosis()[0], diagnosis()


# -- providers --------------------------------------------------------------------------------------------------------


def test_probe_model_is_valid_onnx() -> None:
    import onnxruntime  # late: collection does without it

    model = onnx.load_from_string(onnx_checks.IDENTITY_MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Identity"]
    assert onnx_checks.load_problem(onnxruntime, CPU) == ""
    assert onnx_checks.load_problem(onnxruntime, CUDA), "this build has none"


class FakeRuntime:
    """ONNX Runtime with providers that load, fail, or are silently left out."""

    __version__ = "1.30.0"

    def __init__(self, **providers: str) -> None:
        self.providers = dict(zip((TENSORRT, CUDA, CPU), providers.values(), strict=True))
        self.SessionOptions = lambda: SimpleNamespace(add_session_config_entry=lambda *_: None)

    def set_default_logger_severity(self, _: int) -> None: ...

    def get_available_providers(self) -> list[str]:
        return [name for name, state in self.providers.items() if state != "absent"]

    def InferenceSession(self, model: bytes, options: object, *, providers: Any, enable_fallback: int) -> object:
        assert enable_fallback == 0
        ((name, _),) = providers
        if self.providers[name] == "fails":
            raise RuntimeError("libcudnn.so.9: cannot open shared object file")
        loaded = [name] if self.providers[name] == "works" else []
        return SimpleNamespace(get_providers=lambda: loaded, run=lambda _, given: [given["x"]])


def provider_finding(
    monkeypatch: pytest.MonkeyPatch, *, driver: bool = True, tensorrt: str, cuda: str, cpu: str = "works"
) -> Finding:
    fake = FakeRuntime(tensorrt=tensorrt, cuda=cuda, cpu=cpu)
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    monkeypatch.setattr(onnx_checks, "has_nvidia_driver", lambda: driver)
    return onnx_checks.onnxruntime_finding()


def test_providers_are_loaded_and_not_only_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = provider_finding(monkeypatch, tensorrt="silent", cuda="fails")
    assert finding.status is Status.OK
    assert finding.detail == (
        "1.30.0: Tensorrt does not load, CUDA RuntimeError: libcudnn.so.9: cannot open shared object file, CPU works"
    )
    assert "CUDA and cuDNN libraries" in finding.advice


def test_missing_cuda_provider_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = provider_finding(monkeypatch, tensorrt="absent", cuda="absent")
    assert finding.detail == "1.30.0: CPU works, Tensorrt not in this build, CUDA not in this build"
    assert "pip install --no-deps --target" in finding.advice
    assert provider_finding(monkeypatch, driver=False, tensorrt="absent", cuda="absent").advice == ""
    assert provider_finding(monkeypatch, tensorrt="works", cuda="works").advice == ""
    assert provider_finding(monkeypatch, tensorrt="absent", cuda="works", cpu="fails").status is Status.FAULT
