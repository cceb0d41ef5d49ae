"""``tts-worker completion``: the scripts, in the shells that this machine has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tts_worker.cli import all_commands, main
from tts_worker.features.completion import command
from tts_worker.features.completion.command import SHELLS, words_of


@pytest.fixture(scope="module")
def installed_voices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two voice packs, one of them damaged."""
    folder = tmp_path_factory.mktemp("voices") / "hibari"
    folder.mkdir()
    packs = {name: folder / name for name in ("am_anton", "bf_berta")}
    for name, metadata in (("am_anton", "aliases: [anton]\n"), ("bf_berta", "nothing: known\n")):
        packs[name].mkdir()
        (packs[name] / "metadata.yaml").write_text(metadata)
    return packs


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory, installed_voices: dict[str, Path]) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "cpu_voices", lambda: installed_voices)
        for shell in SHELLS:
            lines: list[str] = []
            patch.setattr("builtins.print", lambda text, end="\n", lines=lines: lines.append(text + end))
            assert main(["completion", shell]) == 0
            (folder / shell).write_text("".join(lines))
    return folder


def completed(scripts: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in ("tts-worker", *words))
    program = (
        f". {scripts / 'bash'}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _tts_worker; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["se"], ["serve"]),
        (["--ver"], ["--version"]),
        (["say", "--spe"], ["--speed"]),
        (["serve", "--engine", "t"], ["tone"]),
        (["say", "--voice", ""], ["heart", "am_anton", "anton", "bf_berta"]),
        (["bench", "la"], ["latency"]),
        (["config", ""], ["init", "check"]),
        (["bench", "latency", "--tu"], ["--turns"]),
        (["voice", "ad"], ["add"]),
        (["voice", "add", "anna", "--audi"], ["--audio"]),
        (["completion", ""], [*SHELLS, "--help"]),
        (["nothing", "--x"], []),
    ],
)
def test_bash_completes(scripts: Path, words: list[str], offered: list[str]) -> None:
    assert completed(scripts, *words) == offered


def test_every_command_and_option_is_in_every_script(scripts: Path) -> None:
    for shell in SHELLS:
        text = (scripts / shell).read_text()
        for name in all_commands():
            assert all(part in text for part in name.split())
            for option in words_of(name).options:
                assert option in text or f"-l {option.removeprefix('--')}" in text


@pytest.mark.parametrize("shell", SHELLS)
def test_script_is_valid_in_its_shell(scripts: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", scripts / shell], check=True)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("se", ["serve"]),
        ("say --spe", ["--speed"]),
        ("serve --engine t", ["tone"]),
        ("say --voice b", ["bf_berta"]),
        ("config ", ["check", "init"]),
        ("bench latency --tu", ["--turns"]),
        ("voice add --audi", ["--audio"]),
    ],
)
def test_fish_completes(scripts: Path, line: str, offered: list[str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    program = f"source {scripts / 'fish'}; complete -C 'tts-worker {line}'"
    done = subprocess.run(["fish", "--no-config", "-c", program], capture_output=True, text=True, check=True)
    assert sorted(each.split("\t")[0] for each in done.stdout.splitlines()) == offered
