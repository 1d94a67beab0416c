"""Public data sets into task files: read back, the same bytes, nothing replaced by accident."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from published_rows import PUBLISHED, Rows

import moeprune
from moeprune import plugins
from moeprune.cli.main import main
from moeprune.errors import DomainError, MoePruneError, OutputError, UsageError
from moeprune.evaluate import layouts
from moeprune.evaluate.tasks.prompts import context_texts
from moeprune.evaluate.tasks.reading import read_tasks


def table(path: Path, rows: Rows) -> str:
    """A table of these rows in the form that the path's suffix names."""
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), "utf-8")
    elif path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(text.getvalue(), "utf-8", newline="")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("layout", plugins.names(layouts))
def test_a_written_task_is_read_back_from_any_form_of_table(layout: str, tmp_path: Path) -> None:
    rows = PUBLISHED[layout]
    flat = all(not isinstance(value, list | dict) for value in rows[0].values())
    written = set()
    for suffix in (".parquet", ".jsonl", ".json", *([".csv"] if flat else [])):
        out = tmp_path / f"out{suffix}"
        source = table(tmp_path / f"t{suffix}", rows)
        made = moeprune.tasks(layout, output=out, questions=source, shots=source)
        assert made.path == out / f"{layout}.toml" and made.questions == len(rows)
        written.add(tuple(contents(out).values()))
        (task,) = read_tasks(out)
        assert task.name == layout and task.protocol == made.protocol
        module = plugins.load(layouts, layout)
        assert {**task.protocol.to_json(), **module.PROTOCOL} == task.protocol.to_json()
        converted = [module.convert(row, at) for at, row in enumerate(rows, start=1)]
        assert [question.id for question in task.questions] == [row["id"] for row in converted]
        for question, row in zip(task.questions, converted, strict=True):
            assert question.text == row.get("question", "")
            assert question.choices == tuple(row.get("choices", ()))
            assert question.right == (row["answer"] if question.choices else None)
    assert len(written) == 1


def test_the_same_rows_give_the_same_bytes_and_a_draw_is_a_part_of_them(tmp_path: Path) -> None:
    rows = [{**PUBLISHED["gsm8k"][0], "question": f"Invented {at}?"} for at in range(50)]
    source = table(tmp_path / "t.jsonl", rows)
    for name in ("a", "b"):
        moeprune.tasks("gsm8k", output=tmp_path / name, questions=source, limit=10, seed=3)
    first = contents(tmp_path / "a")
    assert first == contents(tmp_path / "b") and set(first) == {"gsm8k.toml", "gsm8k.jsonl"}
    moeprune.tasks("gsm8k", output=tmp_path / "c", questions=source)
    every = contents(tmp_path / "c")["gsm8k.jsonl"].splitlines()
    drawn = first["gsm8k.jsonl"].splitlines()
    assert len(drawn) == 10 and [line for line in every if line in drawn] == drawn
    (task,) = read_tasks(tmp_path / "c", overrides={"limit": 10, "seed": 3})
    assert [question.id for question in task.questions] == [json.loads(x)["id"] for x in drawn]


def test_several_subjects_become_domains_with_shots_of_their_own(tmp_path: Path) -> None:
    rows = PUBLISHED["ceval"]
    sources: dict[str, list[str]] = {"val": [], "dev": []}
    for split in sources:
        (tmp_path / split).mkdir()
        for subject in ("made_up_law", "made_up_art"):
            changed = [{**row, "question": f"{subject} {split} {row['id']}"} for row in rows]
            sources[split].append(table(tmp_path / split / f"{subject}_{split}.csv", changed))
    made = moeprune.tasks(
        "ceval", output=tmp_path / "o", questions=sources["val"], shots=sources["dev"]
    )
    assert dict(made.domains) == {"made_up_law": 5, "made_up_art": 5} and made.few == ()
    (task,) = read_tasks(made.path)
    assert [question.id for question in task.questions][4:6] == ["made_up_law-4", "made_up_art-0"]
    (text,) = context_texts(task, task.questions[7], tokenizer=None)
    assert text.count("made_up_art dev") == 5 and "made_up_law" not in text
    named = [f"法学={sources['val'][0]}", f"艺术={sources['val'][1]}"]  # and not so the shots
    made = moeprune.tasks("ceval", output=tmp_path / "n", questions=named, shots=sources["dev"])
    assert set(made.domains) == {"法学", "艺术"} and made.few == ("法学", "艺术")
    whole = moeprune.tasks(
        "ceval", output=tmp_path / "f", questions=str(tmp_path / "val"), shots=str(tmp_path / "dev")
    )
    assert list(whole.domains) == ["made_up_art", "made_up_law"] and whole.few == ()
    one = moeprune.tasks(
        "ceval", output=tmp_path / "p", questions=f"x={sources['val'][0]}", shots="none"
    )
    assert dict(one.domains) == {"x": 5} and one.protocol.shots == 0 and one.shots == 0


def test_nothing_is_replaced_unless_asked_and_nothing_is_left_over(tmp_path: Path) -> None:
    source = table(tmp_path / "t.jsonl", PUBLISHED["mmlu"])
    out = tmp_path / "deep" / "out"
    moeprune.tasks("mmlu", output=out, questions=source, shots=source)
    before = contents(out)
    with pytest.raises(OutputError, match=r"mmlu\.toml exists\. Pass --overwrite"):
        moeprune.tasks("mmlu", output=out, questions=source, shots=source)
    (out / "mmlu.toml").unlink()
    with pytest.raises(OutputError, match=r"mmlu\.jsonl exists"):
        moeprune.tasks("mmlu", output=out, questions=source, shots=source)
    moeprune.tasks("mmlu", output=out, questions=source, shots=source, overwrite=True)
    assert contents(out) == before
    moeprune.tasks("mmlu", output=out, questions=source, shots=source, name="mine")
    assert len(read_tasks(out)) == 2
    moeprune.tasks("mmlu", output=out, questions=source, shots="none", overwrite=True)
    assert "mmlu.shots.jsonl" not in contents(out) and len(read_tasks(out)) == 2


def refused(call: Any, *, kind: type[MoePruneError] = UsageError) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700
    return str(caught.value)


def test_what_cannot_be_converted_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def made(layout: str = "piqa", rows: Rows | None = None, **how: Any) -> Any:
        source = table(tmp_path / "t.jsonl", PUBLISHED[layout] if rows is None else rows)
        return lambda: moeprune.tasks(layout, **{"output": out, "questions": source, **how})

    piqa = PUBLISHED["piqa"]
    withheld = refused(made(rows=[*piqa, {**piqa[0], "label": -1}]))
    assert "line 4" in withheld and "hf:baber/piqa:validation" in withheld
    assert "there is no column 'goal'; there are: question" in refused(
        made(rows=PUBLISHED["gsm8k"])
    )
    assert "is asked after 5 solved questions. Name them with --shots SOURCE (the Hub has" in (
        refused(made("mmlu"))
    )
    assert "Did you mean 'mmlu'" in refused(lambda: moeprune.tasks("mmlv", output=out))
    assert (
        "in parts. Name one or more of them: --questions hf:ceval/ceval-exam/{SUBJECT}:val"
        in refused(lambda: moeprune.tasks("ceval", output=out))
    )
    assert "has no row" in refused(made(rows=[]))
    assert "choice 1 is blank" in refused(made(rows=[{**piqa[0], "sol2": " "}]))
    arc = PUBLISHED["arc"]
    assert "has the id 'Made_up_0' of" in refused(made("arc", rows=[arc[0], arc[0]]))
    assert "limit 0" in refused(made(limit=0))
    for name in ("a/b", "..", "", "a\nb"):
        assert "a task cannot be called" in refused(made(name=name))
    assert "is no table but a text file" in refused(
        made(questions=str(_file(tmp_path / "x.txt", b"hello")))
    )
    bad = {
        "x.json": (b'[{"a": 1}', "is not a JSON list of rows"),
        "y.json": (b"[1]", "is a int, not a row"),
        "x.csv": (b"a,b\n1\n", "more or fewer values"),
        "y.csv": (b'a,b\n"1,2\n', "is not CSV"),
        "x.parquet": (b"PAR1 no", "cannot be read as parquet"),
        "x.jsonl": (b"{", "is not JSON"),
    }
    for name, (data, said) in bad.items():
        path = str(_file(tmp_path / name, data))
        assert said in refused(made(questions=path), kind=DomainError)
        assert path in refused(made(questions=path), kind=DomainError)
    assert "does not exist" in refused(made(questions="gone.jsonl"), kind=DomainError)
    (tmp_path / "empty").mkdir()
    assert "is a folder without a table" in refused(made(questions=str(tmp_path / "empty")))
    assert "is no file" in refused(made(questions="gone.parquet"), kind=DomainError)
    assert "is not hf:" in refused(made(questions="hf:x"))
    assert "is not hf:" in refused(made(questions="hf:a/b:test:column"))
    assert not out.exists()
    file = _file(tmp_path / "file", b"")
    assert "is a file; name a folder" in refused(made(output=file), kind=OutputError)
    assert "cannot write" in refused(made(output=file / "in"), kind=OutputError)


def _file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_csv_may_hold_any_sign_in_a_value(tmp_path: Path) -> None:
    rows = [{**PUBLISHED["piqa"][0], "goal": 'one\r\ntwo, "three"\u2028four\x85'}]
    made = moeprune.tasks("piqa", output=tmp_path / "o", questions=table(tmp_path / "t.csv", rows))
    assert read_tasks(made.path)[0].questions[0].text == rows[0]["goal"]


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = table(tmp_path / "t.jsonl", PUBLISHED["mmlu"])
    args = ["tasks", "mmlu", "-o", str(tmp_path / "o"), "--questions", source, "--shots", source]
    assert main(args) == 0
    said = capsys.readouterr()
    path = tmp_path / "o" / "mmlu.toml"
    assert said.out == (
        f"{path}: 6 questions in 2 domains, kind letters, after 5 solved ones (6 are there).\n"
        f"Next: moeprune eval MODEL --tasks {path} -o RUN\n"
    )
    assert "2 domains have fewer than 5 solved questions of their own" in said.err
    assert main([*args, "--json", "--overwrite", "--name", "m2"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["domains"] == {"made up geology": 3, "made up history": 3} and body["shots"] == 6
    assert main(args) == 2
    assert "exists. Pass --overwrite" in capsys.readouterr().err
