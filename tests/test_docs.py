"""What is generated is up to date, links lead somewhere, and documented commands exist."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import moeprune
from moeprune.cli.default_command import DefaultCommand
from moeprune.cli.main import COMMANDS, cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(
    "script", ["docs/make_cli.py", "docs/make_families.py", "calibration/generate.py"]
)
def test_generated_files_are_up_to_date(script: str) -> None:
    done = subprocess.run([sys.executable, ROOT / script, "--check"], cwd=ROOT)
    assert done.returncode == 0, f"run: python {script}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+?)(#[^)]*)?\)", text):
        path = target[0]
        if "://" not in path:
            assert (page.parent / path).exists(), f"{page.name} links to {path}"
    for path, anchor in re.findall(r"\]\(([^)#]*)#([^)]*)\)", text):
        linked = (page.parent / path) if path else page
        heads = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
        assert anchor in slugs, f"{page.name} links to {path}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    """Every ``moeprune COMMAND … --option`` line in the documentation parses as it stands."""
    if page.name == "cli.md":
        return
    code = "".join(re.findall(r"^```\w*\n(.*?)^```", page.read_text("utf-8"), re.M | re.S))
    for line in re.findall(r"^(?:\$ |\w.* -m )?moeprune (\S.*)$", code, re.M):
        words = line.split()
        assert words[0] in COMMANDS, f"{page.name}: moeprune {line}"
        command = cli.get_command(None, words[0])  # type: ignore[arg-type]
        assert command is not None
        if isinstance(command, DefaultCommand) and words[1] in command.others:
            command = command.other(words[1])
        known = {name for parameter in command.params for name in parameter.opts}
        for word in words:
            if word.startswith("-"):
                assert word.split("=")[0] in known | {"--help"}, f"{page.name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_calls_take_the_options_that_python_examples_give(page: Path) -> None:
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
        for call in ast.walk(ast.parse(code)):
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("moeprune."):
                function = getattr(moeprune, ast.unparse(call.func).removeprefix("moeprune."))
                options = {option.arg: None for option in call.keywords if option.arg}
                inspect.signature(function).bind(*call.args, **options)


def test_every_document_of_the_design_is_there() -> None:
    for name in ("index", "quickstart", "concepts", "formats", "cli", "extend", "contributing"):
        assert (ROOT / "docs" / f"{name}.md").is_file()
    assert (ROOT / "docs" / "changelog.md").is_file() and (ROOT / "LICENSE").is_file()


def test_the_repository_names_no_machine() -> None:
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    hosts = re.compile(r"/(?:work|farm)/|pypi\.org|registry\.npmjs|deb\.debian")
    for name in filter(None, files):
        path = ROOT / name
        if path.suffix in (".safetensors", ".png") or path == Path(__file__).resolve():
            continue
        found = hosts.search(path.read_text(encoding="utf-8", errors="ignore"))
        assert not found, f"{name}: {found[0] if found else ''}"
