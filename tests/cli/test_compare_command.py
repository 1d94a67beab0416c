"""``moeprune compare`` as it is used: text, Markdown, JSON, exit codes."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from written_runs import answers, flipped, run, texts

from moeprune.cli.main import main

GOLDEN = Path(__file__).parent.parent / "golden" / "comparison.md"
RIGHT = "1" * 30 + "0" * 10


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four variants on three tasks, written, with perplexity; names that a table must bear."""
    flips = {
        "native": ((0, 0), (0, 0), (0, 0), 0.0),
        "mesa": ((1, 2), (3, 1), (2, 2), -0.5),
        "reap": ((6, 1), (1, 0), (2, 1), 0.5),
        "rm|uniform": ((9, 0), (0, 2), (1, 3), -1.0),
        "random_0.25": ((14, 2), (8, 0), (4, 4), -1.5),
    }
    for name, (mmlu, gsm8k, arc, shift) in flips.items():
        made = run(
            name,
            answers("mmlu", flipped(RIGHT, *mmlu), domains=("law", "физика", "化学")),
            answers(
                "gsm8k",
                flipped(RIGHT, *gsm8k),
                tokens=lambda place, more=gsm8k[0]: min(64, 20 + place + 4 * more),
                truncated=lambda place, more=gsm8k[0]: 20 + place + 4 * more >= 64,
            ),
            answers("arc", flipped(RIGHT, *arc)),
            texts("wikitext", [30 + shift + place % 3 for place in range(12)], tokens=12),
            variant={} if name == "native" else {"plan": {"method": name}},
            model={"name": "tiny-moe"},
        )
        folder = tmp_path / "runs" / name.replace("|", "-")
        folder.mkdir(parents=True)
        made.save(folder)
    return tmp_path / "runs"


def test_the_table_fits_a_terminal_and_says_what_there_is(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(runs)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    lines = out.splitlines()
    assert lines[0] == (
        "4 variants against native (tiny-moe): change = variant - base, 95% intervals"
    )
    at = lines.index("worst domain of each variant")
    assert [line.split("  ")[0] for line in lines[at + 2 : at + 6]] == [
        *("random_0.25", "rm|uniform", "reap", "mesa"),  # who lost most first
    ]
    for words in (
        "mmlu: 40 questions, native 75.00%",
        "14/2",
        "all tasks together: 120 questions, native 75.00%",
        "mmlu / физика",
        "change by task, points",
        "answers cut off by their budget",
        "tokens of an answer: mean, and change",
        "does perplexity rank the models as accuracy does?",
        "mean change by group of tasks, points",
        "exact McNemar, two-sided",
        "Not significant is no proof of equality.",
        "warning: random_0.25: perplexity of wikitext is",
    ):
        assert words in out


def test_markdown_is_golden(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs), "--markdown"]) == 0
    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")


def test_markdown_tables_have_as_many_cells_as_columns(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compare", str(runs), "--markdown"])
    for block in capsys.readouterr().out.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("| ")]
        counts = {line.replace("\\|", "").count("|") for line in rows}
        assert len(counts) <= 1


def test_json_is_everything_and_the_order_of_lines_does_not_show(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(runs), "--json"]) == 0
    first = capsys.readouterr().out
    body = json.loads(first)
    assert body["schema"] == "moeprune.comparison/1"
    assert body["tests"] == {"tasks": 12, "domains": 20, "overall": 4}
    by_name = {one["name"]: one for one in body["variants"]}
    part = by_name["reap"]["tasks"]["mmlu"]
    assert (part["to_wrong"], part["to_right"], part["points"]) == (6, 1, -12.5)
    assert set(body["base"]["tasks"]) == {"mmlu", "gsm8k", "arc", "wikitext"}
    for folder in runs.iterdir():
        path = folder / "samples.jsonl"
        rows = path.read_text().splitlines(keepends=True)
        path.write_text("".join(random.Random(1).sample(rows, len(rows))))
    assert main(["compare", str(runs), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["variants"] == body["variants"] and again["warnings"] == body["warnings"]


def test_a_regression_is_exit_code_1_and_says_which(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = [str(runs / "native"), str(runs / "mesa")]
    assert main(["compare", *pair, "--fail-on-regression", "5"]) == 0
    assert "no regression beyond 5 points by task." in capsys.readouterr().out
    assert main(["compare", *pair, "--fail-on-regression", "4.9"]) == 1
    streams = capsys.readouterr()
    assert "regression: mesa lost 5.00 points on gsm8k, p = 0.625" in streams.out
    assert streams.err == "moeprune: mesa lost 5.00 points on gsm8k, more than the 4.9 allowed.\n"
    assert main(["compare", *pair, "--fail-on-regression", "4.9", "--significant"]) == 0
    capsys.readouterr()
    everything = [str(runs), "--fail-on-regression", "0", "--regression-by", "domain", "--json"]
    assert main(["compare", *everything]) == 1
    streams = capsys.readouterr()
    found = json.loads(streams.out)["regressions"]
    assert " points on gsm8k, more than the 0 allowed (" in streams.err
    assert len(found) > 5 and "more regressions)" in streams.err
    assert main(["compare", *pair, "--fail-on-regression", "1", "--regression-by", "overall"]) == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--markdown", "--json"], "two forms of one result"),
        (["--significant"], "belongs to --fail-on-regression"),
        (["--regression-by", "domain"], "belongs to --fail-on-regression"),
        (["--fail-on-regression", "-1"], "no limit"),
        (["--fail-on-regression", "nan"], "no limit"),
        (["--level", "95"], "between 0 and 1"),
        (["--tasks", "mmul"], "Did you mean 'mmlu'"),
        (["--metric", "acc_norm"], "no metric of native named"),
        (["--cluster", "reasoning"], "is not GROUP=TASK"),
        (["--cluster", "a=mmlu", "--cluster", "a=arc"], "names the group 'a' twice"),
        (["--cluster", "a=mmlu", "--cluster", "b=arc,x"], "no task x"),
        (["--cluster", "a=mmlu"], "two groups"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_do_not_fit_are_exit_code_2(
    args: list[str], words: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(runs), *args]) == 2
    streams = capsys.readouterr()
    assert words in streams.err and streams.err.count("\n") == 1 and not streams.out


def test_other_files_are_called_by_their_kind(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text('{"schema": "moeprune.plan/1"}')
    (tmp_path / "empty").mkdir()
    for name, kind in (
        ("plan.json", "is a plan"),
        ("empty", "is an empty folder"),
        ("no", "exist"),
    ):
        for pair in ([name, "runs/native"], ["runs/native", name]):
            assert main(["compare", *(str(tmp_path / one) for one in pair)]) == 2
            assert kind in capsys.readouterr().err
    assert main(["compare"]) == 2
    capsys.readouterr()


def test_options_choose_what_is_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs), "--tasks", "mmlu,arc", "--level", "0.99"]) == 0
    out = capsys.readouterr().out
    assert "99% intervals" in out and "gsm8k" not in out and "wikitext" not in out
    assert "of all tasks together over" in " ".join(out.split())
    assert main(["compare", str(runs), "--tasks", "mmlu"]) == 0
    assert "all tasks together" not in " ".join(capsys.readouterr().out.split())
    groups = ["--cluster", "written=gsm8k", "--cluster", "chosen=mmlu,arc"]
    assert main(["compare", str(runs), *groups]) == 0
    out = capsys.readouterr().out
    assert "written" in out and "this p is too small" not in out


def test_one_variant_has_its_tasks_under_each_other(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(runs / "native"), str(runs / "reap")]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("change by task, points")
    assert [line.split()[:4] for line in lines[at + 1 : at + 6]] == [
        ["task", "n", "native", "reap"],
        ["mmlu", "40", "75.00%", "62.50%"],
        ["gsm8k", "40", "75.00%", "72.50%"],
        ["arc", "40", "75.00%", "72.50%"],
        ["all", "together", "120", "75.00%"],
    ]
    assert lines[at + 6] == "Every task the same weight: -5.83 points."
    assert max(map(len, lines)) <= 100
    told = {"long": {"kind": "degeneration"}}
    for name, right in (("n", "111"), ("v", "110")):
        rows = [answers("aime", right, seed=seed) for seed in range(2)]
        (tmp_path / name).mkdir()
        run(name, *rows, answers("long", right), tasks=told).save(tmp_path / name)
    assert main(["compare", str(tmp_path / "n"), str(tmp_path / "v")]) == 0
    out = capsys.readouterr().out
    assert "aime: each question under 2 seeds." in out
    assert "long (no loop)" in out and "all together" not in out


def test_many_domains_are_cut_short_and_names_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    domains = [f"a very long name of a domain, number {number}" for number in range(20)]
    for name, lost in (("n", 0), ("v" * 60, 9), ("w", 5), ("x", 1), ("y", 2), ("z", 3)):
        folder = tmp_path / f"{lost}"
        folder.mkdir()
        run(name, answers("mmlu", flipped("1" * 100, lost, 0), domains=domains)).save(folder)
    args = ["compare", *(str(tmp_path / one) for one in ("0", "9", "5", "1", "2", "3"))]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "8 more: --all-domains, or --json." in out
    assert max(map(len, out.splitlines())) <= 100
    assert main([*args, "--all-domains"]) == 0
    assert "number 19" in capsys.readouterr().out


def test_names_cannot_break_a_table_or_drive_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, right in (("n\x1b[31m\n|", "11"), ("v`<b>", "01")):
        folder = tmp_path / right
        folder.mkdir()
        run(name, answers("t\n| x", right)).save(folder)
    args = ["compare", str(tmp_path / "11"), str(tmp_path / "01")]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "t\\n| x: 2 questions, n\\x1b[31m\\n| 100.00%" in out
    assert main([*args, "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "| v\\`\\<b\\> | t \\| x | 2 |" in out


def test_the_legend_says_what_decides_where_interval_and_p_disagree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, right in (("n", "1" * 40), ("four", "0000" + "1" * 36), ("one", "0" + "1" * 39)):
        (tmp_path / name).mkdir()
        rows = answers("gsm8k", right, truncated=False, tokens=5)
        run(name, rows).save(tmp_path / name)
    for name, told in (("four", True), ("one", False)):
        assert main(["compare", str(tmp_path / "n"), str(tmp_path / name)]) == 0
        out = capsys.readouterr().out
        assert ("p decides." in " ".join(out.split())) is told
        assert "answers cut off by their budget\nNone, of any model.\n" in out
        assert "Losses that are not ruled out" in out
    # Four won and none lost: no sure gain, but an interval without a loss.
    assert main(["compare", str(tmp_path / "four"), str(tmp_path / "n")]) == 0
    out = capsys.readouterr().out
    assert "0/4" in out and "not ruled out" not in out


def test_a_task_of_lm_eval_without_parts_is_called_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, right in (("n", "11"), ("v", "01")):
        (tmp_path / name).mkdir()
        whole = answers("lm_eval:arc", right, domains=("arc",))
        parts = answers("lm_eval:mmlu", right, domains=("mmlu_law", "mmlu_virology"))
        run(name, whole, parts).save(tmp_path / name)
    args = ["compare", str(tmp_path / "n"), str(tmp_path / "v"), "--fail-on-regression", "1"]
    assert main([*args, "--regression-by", "domain"]) == 1
    out = capsys.readouterr().out
    assert "points on lm_eval:arc, p" in out and "points on lm_eval:mmlu / mmlu_law, p" in out


def test_texts_alone_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, cost in (("n", 50.0), ("v", 70_000.0)):
        (tmp_path / name).mkdir()
        run(name, texts("wiki", [cost])).save(tmp_path / name)
    assert main(["compare", str(tmp_path / "n"), str(tmp_path / "v")]) == 0
    out = capsys.readouterr().out
    assert "148.413    1.8e+308  +1.8e+308 x  -" in out and "worst domain" not in out


def test_seeds_are_shown_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lost in (("native", 0), ("v", 2)):
        rows = [answers("aime", flipped("11101", lost, 0), seed=seed) for seed in range(3)]
        (tmp_path / name).mkdir()
        run(name, *rows).save(tmp_path / name)
    args = ["compare", str(tmp_path / "native"), str(tmp_path / "v")]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "5 questions, native 80.00%, 3 seeds each" in out and "sign-flip" in out
    assert "each seed alone" not in out
    assert main([*args, "--by-seed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["v", "aime", "2"] in [line.split()[:3] for line in lines]


def test_compare_imports_no_torch(runs: Path) -> None:
    code = (
        "import sys\n"
        "from moeprune.cli.main import main\n"
        f"assert main(['compare', {str(runs)!r}]) == 0\n"
        "heavy = {'torch', 'transformers', 'accelerate', 'lm_eval'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
