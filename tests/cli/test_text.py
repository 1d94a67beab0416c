"""Small pieces of the command line: shards, weights, sizes, the progress line, error lines."""

import fcntl
import io
import os
import pty
import struct
import termios
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic

import moeprune
from moeprune.cli.main import main
from moeprune.cli.plan_text import parse_weights, plan_text
from moeprune.cli.progress import describe, progress
from moeprune.cli.text import parse_shard, size, stats_text, table
from moeprune.core.progress import Progress, ignore
from moeprune.errors import UsageError
from moeprune.evaluate.logits import LogitDifference
from moeprune.stages.verify import VerifyReport


@pytest.mark.parametrize(("text", "value"), [("0/1", (0, 1)), ("3/8", (3, 8))])
def test_shard(text: str, value: tuple[int, int]) -> None:
    assert parse_shard(text) == value


@pytest.mark.parametrize(
    "text", ["", "1", "1/1", "2/1", "-1/2", "a/b", "0/0", "1/2/3", "1.0/2", "0/" + "9" * 5000]
)
def test_bad_shard(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        parse_shard(text)


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        ((), None),
        (("tokens",), "tokens"),
        (("math=2", "数学=0.5"), {"math": 2.0, "数学": 0.5}),
        (("a=b=3",), {"a=b": 3.0}),
        (("x=0",), {"x": 0.0}),
    ],
)
def test_weights(texts: tuple[str, ...], value: object) -> None:
    assert parse_weights(texts) == value


@pytest.mark.parametrize(
    "texts", [("math",), ("math=",), ("=2",), ("m=-1",), ("m=nan",), ("m=inf",), ("m=1", "m=2")]
)
def test_bad_weights(texts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--domain-weight"):
        parse_weights(texts)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (61_070_000_000, "61.07 GB"),
        (2e13, "20.00 TB"),
    ],
)
def test_size(value: int, text: str) -> None:
    assert size(value) == text


def test_table_aligns() -> None:
    assert table([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc   d"


def test_progress_says_rate_and_time_left() -> None:
    text = describe(Progress("calibrate math", 600, 1000, "tokens"), seconds=2.0, since=100)
    assert text == "calibrate math   60%  600 tokens  250 tokens/s  0:01 left"
    for left, clock in {59: "0:59", 60: "1:00", 3599: "59:59", 3600: "1:00:00"}.items():
        text = describe(Progress("export", 1, 1 + left, "files"), seconds=1.0)
        assert text.endswith(f"  {clock} left")
    assert "GB" in describe(Progress("export", 2 * 10**9, 0, "bytes"), seconds=1.0)


def test_progress_is_silent_when_not_a_terminal() -> None:
    stream = io.StringIO()
    with progress(stream) as report:
        assert report is ignore
        report(Progress("x", 1, 2, "tokens"))
    assert stream.getvalue() == ""


def test_progress_draws_on_a_terminal_and_clears() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress(stream) as report:
        report(Progress("x", 2, 2, "tokens"))
    assert "2 tokens" in stream.getvalue()
    assert stream.getvalue().endswith("\r")


@pytest.mark.parametrize("columns", [40, 61, 200])
def test_progress_stays_on_one_line_of_the_terminal(columns: int) -> None:
    """A wrapped line cannot be drawn over: every report would scroll."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(theirs, "w") as stream, progress(stream) as report:
        report(Progress("search", 2, 2, "plans", "generation 1 of 10, " + "x" * 200))
    lines = os.read(ours, 10_000).decode().split("\r")
    os.close(ours)
    assert max(map(len, lines)) == columns - 1
    assert any(line.startswith("search  100%  2 plans") for line in lines)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["plam", "x"], ["plam", "plan"]),
        (
            ["plan", "missing.safetensors", "-o", "p.json", "--ratio", "0.5"],
            ["missing.safetensors"],
        ),
        (["inspect", "no/such/model"], ["no/such/model"]),
        (["inspect", "./nowhere"], ["./nowhere"]),
        (["calibrate", "x", "-o", "s", "--shard", "9"], ["--shard", "9"]),
        (["plan", "x", "-o", "p", "--domain-weight", "math"], ["--domain-weight", "math"]),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("moeprune: ") and err.count("\n") == 1
    for word in words:
        assert word in err


def test_documents_of_missing_shards_are_not_counted() -> None:
    whole = synthetic.stats(domains=["a", "b", "c"])
    a, b, c = whole.domains
    stats = replace(
        whole,
        domains=(
            a,
            replace(b, documents=7, shards=((1, 3),)),  # documents 1 and 4
            replace(c, documents=7, shards=((0, 3), (2, 3))),  # 0, 3, 6 and 2, 5
        ),
    )
    rows = [line.split("  ") for line in stats_text(stats, Path("s")).splitlines()[2:5]]
    shown = [[cell.strip() for cell in row if cell.strip()][1] for row in rows]
    assert shown == ["4", "2 of 7", "5 of 7"]
    assert len(repr(stats)) < 2000  # not the arrays


def test_help_cuts_no_line_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    out, _ = capsys.readouterr()
    commands = " ".join(out.partition("Commands:")[2].split())
    assert "..." not in commands and "no model, no GPU, seconds." in commands


@pytest.mark.parametrize(("scale", "allowed"), [(0.5, "1.00e-05"), (20.0, "2.00e-04")])
def test_verify_says_what_it_allows(scale: float, allowed: str) -> None:
    found = LogitDifference(largest=1.5e-5, scale=scale, same_argmax=1.0, positions=7)
    report = VerifyReport(
        problems=(), tensors=1, dropped=1, bytes_compared=1, logits=found, tolerance=1e-5
    )
    assert f"largest difference 1.50e-05 (allowed {allowed}) from the source" in report.to_text()
    assert found.within(1e-5) is (scale == 20.0)


@pytest.mark.parametrize(
    ("jaccard", "line"),
    [
        (None, "stability: not known, a domain has too few documents to be halved"),
        (0.79, "agree on 79% of what leaves: calibrate on more and longer text"),
        (0.8, "agree on 80% of what leaves"),
    ],
)
def test_plan_says_how_stable_it_is(jaccard: float | None, line: str) -> None:
    plan = moeprune.plan(synthetic.stats(), ratio=0.25)
    text = plan_text(replace(plan, stability={"jaccard": jaccard}), "p")
    (shown,) = [shown for shown in text.splitlines() if shown.startswith("stability")]
    assert shown.endswith(line)
