"""Planning, exporting and looking at help must not wait for torch."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "accelerate")
CODE = """
import sys
from moeprune.cli.main import main
code = main({args!r})
heavy = sorted(set({heavy!r}) & set(sys.modules))
assert not heavy, heavy
sys.exit(code)
"""


def run(args: list[str]) -> subprocess.CompletedProcess[str]:
    code = CODE.format(args=args, heavy=HEAVY)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    "args",
    [["--help"], ["--version"]]
    + [
        [name, "--help"]
        for name in (
            "demo",
            "inspect",
            "calibrate",
            "merge",
            "plan",
            "analyse",
            "export",
            "verify",
            "compare",
            "eval",
            "push",
            "tasks",
        )
    ],
    ids=" ".join,
)
def test_help_imports_no_torch(args: list[str]) -> None:
    done = run(args)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_import_moeprune_is_light() -> None:
    code = "import sys, moeprune; assert not {'torch', 'numpy', 'click'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
