"""The command line on hard ground: wrong usage, odd terminals, closed streams, huge messages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic

from moeprune.cli.main import main
from moeprune.cli.options import printable, say


@pytest.fixture
def stats(tmp_path: Path) -> Path:
    path = tmp_path / "stats.safetensors"
    synthetic.stats(domains=("数学", "code")).save(path)
    return path


def run(*args: object, **settings: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "moeprune", *map(str, args)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60, **settings)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["plan"], "Missing argument 'STATS'. See 'moeprune plan --help'."),
        (["plan", "s"], "Missing option '-o' / '--output'."),
        (["plan", "s", "-o", "p", "--ratio", "25%"], "'25%' is not a number"),
        (["plan", "s", "-o", "p", "--decay", "square"], "'linear', 'cosine', 'constant'"),
        (["plan", "s", "more", "-o", "p"], "unexpected extra argument (more)"),
        (["export", "m", "-o", "x"], "give --plan (which experts stay)"),
        (["--bad"], "No such option '--bad'. See 'moeprune --help'."),
        (["inspekt", "m"], "Did you mean 'inspect'?"),
        (["verify", "a", "--source", "b", "--tolerance", "1"], "--tolerance is for --forward."),
        (["verify", "a", "--source", "b", "--dtype", "auto"], "--dtype is for --forward."),
        (["verify", "a", "--source", "b", "--device", "cpu"], "--device is for --forward."),
        (["verify", "a", "--source", "b", "--trust-remote-code"], "--trust-remote-code is for"),
        (["verify", "a", "--source", "b", "--forward", "--tolerance=nan"], "--tolerance nan"),
        (["verify", "a", "--source", "b", "--forward", "--tolerance=-1"], "--tolerance -1"),
        (["plan", "x" * 300, "-o", "p", "--ratio", "0.5"], "too long"),
        (["inspect", "x" * 300], "too long"),
    ],
)
def test_wrong_usage_is_one_line(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("moeprune: ") and err.count("\n") == 1
    assert says in err


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "inspect" in capsys.readouterr().err


def test_an_error_line_is_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan whose 'keep' is a text of a megabyte is not quoted whole."""
    body = {
        "schema": "moeprune.plan/1",
        "model": {"name": "m", "fingerprint": "f", "model_type": "t"}
        | dict.fromkeys(("top_k", "num_groups", "top_groups"), 1),
        "layers": [{"layer": 0, "num_experts": 4, "keep": "1" * 1_000_000}],
    }
    (tmp_path / "plan.json").write_text(json.dumps(body))
    assert main(["export", "m", "-o", "o", "--plan", str(tmp_path / "plan.json")]) == 2
    err = capsys.readouterr().err
    assert len(err) < 1300 and "keep is" in err and "should be a list" in err


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8", "cp1252"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_terminal_that_lacks_the_letters(encoding: str, form: list[str], stats: Path) -> None:
    plan = stats.with_name("plan.json")
    done = run(
        *("plan", stats, "-o", plan, "--ratio", "0.5", *form),
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "数学" in plan.read_text(encoding="utf-8")
    if form:
        assert "数学" in json.loads(done.stdout)["domain_loss"]


def test_names_do_not_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\x1b[31m\tü") == "a\\x1b[31m\\tü"
    say({}, "one\ntwo\x07", as_json=False)
    assert capsys.readouterr().out == "one\ntwo\\x07\n"


def test_a_result_that_cannot_be_written(stats: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "moeprune", "plan", stats, "-o", stats.with_name("p")]
        done = subprocess.run(
            [*command, "--ratio", "0.5"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2
    assert done.stderr == b"moeprune: No space left on device.\n"


def test_without_a_stderr(tmp_path: Path) -> None:
    """As a daemon runs it: the error must not become another one."""
    code = (
        "import sys; sys.stderr = None\n"
        "from moeprune.cli.progress import progress\n"
        "with progress() as report: print(report.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.stdout == b"ignore\n"
