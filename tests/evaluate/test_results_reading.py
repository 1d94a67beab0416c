"""Results of lm-eval are read as what they are: files that lm-eval itself has written."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import forked
import pytest
from written_runs import answers, run

from moeprune.errors import MismatchError, MoePruneError, RunError
from moeprune.evaluate.comparison.joining import join
from moeprune.evaluate.results import read_results

# Three runs of lm-eval's dummy model, which answers at random: two into one folder.
WRITE = """
import json, sys, time
from pathlib import Path
import lm_eval
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

root = Path(sys.argv[1])
rows = [
    {"q": f"What is {i}+{i}?", "choices": [str(2 * i), str(2 * i + 1), "x"], "a": i % 2,
     "num": str(2 * i)}
    for i in range(8)
]
(root / "rows.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
common = f'''dataset_path: json
dataset_kwargs: {{data_files: {{test: {root}/rows.jsonl}}}}
test_split: test
'''
choice = common + '''output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: "{{choices}}"
doc_to_target: a
metric_list: [{metric: acc}, {metric: acc_norm}]
'''
(root / "mc_a.yaml").write_text("task: mc_a\\n" + choice)
(root / "mc_b.yaml").write_text("task: mc_b\\n" + choice)
(root / "both.yaml").write_text("group: both\\ntask: [mc_a, mc_b]\\n")
(root / "gen.yaml").write_text("task: gen\\n" + common + '''output_type: generate_until
doc_to_text: "{{q}}"
doc_to_target: "{{num}}"
generation_kwargs: {until: ["\\\\n"], max_gen_toks: 8}
metric_list: [{metric: exact_match}]
filter_list:
  - name: strict-match
    filter: [{function: regex, regex_pattern: "(\\\\\\\\d+)"}, {function: take_first}]
  - name: flexible-extract
    filter: [{function: take_first}]
''')
(root / "mixed.yaml").write_text("group: mixed\\ntask: [both, gen]\\n")
(root / "ppl.yaml").write_text("task: ppl\\n" + common + '''output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{q}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
''')
manager = TaskManager(include_path=str(root), include_defaults=False)
for folder, seed in (("one", 1), ("one", 2), ("other", 3)):
    tracker = EvaluationTracker(output_path=str(root / folder))
    found = lm_eval.simple_evaluate(
        model="dummy", tasks=["mixed", "ppl"], task_manager=manager, log_samples=True,
        limit=7, bootstrap_iters=0, evaluation_tracker=tracker, random_seed=seed,
    )
    # Without a name, it is one drawn from the seed.
    tracker.general_config_tracker.model_name_sanitized = "org__model"
    samples = found.pop("samples")
    tracker.save_results_aggregated(results=found, samples=samples)
    for name in found["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    time.sleep(1.1)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lm_eval")
    done = forked.run(["-c", WRITE, root], cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    return root


def folder_of(written: Path, name: str) -> Path:
    """Where lm-eval put it: below a folder called after the model."""
    (inner,) = (item for item in (written / name).iterdir() if item.is_dir())
    return inner


def newest(folder: Path, kind: str) -> Path:
    return max(folder.glob(f"{kind}*"))


def logged(folder: Path, task: str) -> list[dict[str, Any]]:
    lines = newest(folder, f"samples_{task}_").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_what_lm_eval_wrote_has_the_means_that_lm_eval_says(written: Path) -> None:
    for name in ("one", "other"):
        folder = folder_of(written, name)
        ((place, found),) = read_results(written / name)
        assert place == folder
        results = json.loads(newest(folder, "results_").read_text())["results"]
        # Subtasks that are scored alike are one task; the group that mixes kinds is not.
        assert list(found.tasks) == ["lm_eval:gen", "lm_eval:both", "lm_eval:ppl"]
        assert {row.domain for row in found.of_task("lm_eval:both")} == {"mc_a", "mc_b"}
        for domain in ("mc_a", "mc_b"):
            rows = [row for row in found.samples if row.domain == domain]
            assert len(rows) == 7
            for metric in ("acc", "acc_norm"):
                mean = sum(row.metrics[metric] for row in rows) / 7
                assert mean == pytest.approx(results[domain][f"{metric},none"])
            assert [row.correct for row in rows] == [row.metrics["acc"] == 1 for row in rows]
        assert found.tasks["lm_eval:both"]["higher_is_better"] == {"acc": True, "acc_norm": True}
        for filter_ in ("strict-match", "flexible-extract"):
            rows = list(found.of_task("lm_eval:gen"))
            mean = sum(row.metrics[f"exact_match,{filter_}"] for row in rows) / 7
            assert mean == pytest.approx(results["gen"][f"exact_match,{filter_}"])
        nll, size = (
            sum(row.details[key] for row in found.of_task("lm_eval:ppl"))
            for key in ("nll", "bytes")
        )
        assert 2 ** (nll / size / 0.6931471805599453) == pytest.approx(
            results["ppl"]["byte_perplexity,none"]
        )


def test_the_newest_of_several_dates_is_read(written: Path) -> None:
    folder = folder_of(written, "one")
    dates = sorted(path.name[8:-5] for path in folder.glob("results_*.json"))
    assert len(dates) == 2
    ((_, found),) = read_results(folder)
    assert found.provenance["dates"] == dates[1:]
    expected = [row["acc"] == 1 for row in logged(folder, "mc_a")]
    assert [row.correct for row in found.samples if row.domain == "mc_a"] == expected
    # One file can be named, an old one too.
    old = folder / f"samples_mc_a_{dates[0]}.jsonl"
    ((_, alone),) = read_results(old)
    assert list(alone.tasks) == ["lm_eval:mc_a"] and len(alone.samples) == 7
    assert alone.provenance["dates"] == dates[:1]
    first = [json.loads(line)["acc"] == 1 for line in old.read_text().splitlines()]
    assert [row.correct for row in alone.samples] == first


def test_two_runs_are_joined_whatever_the_order_of_their_lines(
    written: Path, tmp_path: Path
) -> None:
    ((_, one),) = read_results(written / "one")
    ((_, other),) = read_results(written / "other")
    tasks = ["lm_eval:both", "lm_eval:gen", "lm_eval:ppl"]
    joined = join(one, other, tasks)
    assert [len(joined.pairs[name]) for name in tasks] == [14, 7, 7]
    shutil.copytree(folder_of(written, "other"), tmp_path / "shuffled")
    for path in (tmp_path / "shuffled").glob("samples_*"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(random.Random(4).sample(lines, len(lines))))
    ((_, shuffled),) = read_results(tmp_path / "shuffled")
    assert join(one, shuffled, tasks).pairs.keys() == joined.pairs.keys()
    assert shuffled.by_key == other.by_key


def test_another_prompt_or_another_target_is_no_pair(written: Path, tmp_path: Path) -> None:
    ((_, one),) = read_results(written / "other")
    for change, words in (
        (("What is", "How much is"), "input"),
        (('"target": "0"', '"target": "2"'), "answer"),
    ):
        folder = tmp_path / words
        shutil.copytree(folder_of(written, "other"), folder)
        path = newest(folder, "samples_mc_b_")
        path.write_text(path.read_text().replace(*change))
        ((_, changed),) = read_results(folder)
        with pytest.raises(MismatchError, match=words):
            join(one, changed, ["lm_eval:both"])


def test_another_budget_or_other_shots_are_no_pair(written: Path, tmp_path: Path) -> None:
    ((_, one),) = read_results(written / "other")
    for name, task, change in (
        ("generation", "lm_eval:gen", ('"max_gen_toks": 8', '"max_gen_toks": 512')),
        ("shots", "lm_eval:both", ('"mc_a": 0', '"mc_a": 5')),
    ):
        folder = tmp_path / name
        shutil.copytree(folder_of(written, "other"), folder)
        path = newest(folder, "results_")
        assert change[0] in path.read_text()
        path.write_text(path.read_text().replace(*change))
        ((_, changed),) = read_results(folder)
        with pytest.raises(MismatchError, match=f"differ in {name}"):
            join(one, changed, [task])


def test_samples_can_be_read_without_the_results_file(written: Path, tmp_path: Path) -> None:
    shutil.copytree(folder_of(written, "other"), tmp_path / "bare")
    newest(tmp_path / "bare", "results_").unlink()
    ((_, found),) = read_results(tmp_path / "bare")
    # What belongs to a group is not known then.
    assert list(found.tasks) == ["lm_eval:gen", "lm_eval:mc_a", "lm_eval:mc_b", "lm_eval:ppl"]
    assert found.name == "bare"
    renamed = tmp_path / "answers.jsonl"
    shutil.copy(newest(tmp_path / "bare", "samples_mc_a_"), renamed)
    ((_, alone),) = read_results(renamed)
    assert list(alone.tasks) == ["lm_eval:answers"] and len(alone.samples) == 7
    for path in (tmp_path / "bare").glob("samples_*"):
        path.unlink()
    shutil.copy(newest(folder_of(written, "other"), "results_"), tmp_path / "bare")
    with pytest.raises(RunError, match=r"no answers.*--log_samples"):
        read_results(tmp_path / "bare")


def test_lines_of_older_versions_are_read(written: Path, tmp_path: Path) -> None:
    """Neither filter nor list of metrics, arguments as lists of lists."""
    for name, old in (("new", False), ("old", True)):
        folder = tmp_path / name
        folder.mkdir()
        source = newest(folder_of(written, "other"), "samples_mc_a_")
        lines = [json.loads(line) for line in source.read_text().splitlines()]
        for line in lines if old else ():
            del line["filter"], line["metrics"]
            line["arguments"] = [list(one.values()) for one in line["arguments"].values()]
        (folder / source.name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((_, new),), ((_, old_one),) = (read_results(tmp_path / name) for name in ("new", "old"))
    assert new.samples == old_one.samples


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "cut short"),
        ("[]", "no doc_id"),
        ('{"doc_id": "1"}', "no doc_id"),
        ('{"doc_id": true}', "no doc_id"),
        ('{"doc_id": 1, "doc_id": 2}', "occurs twice"),
        ('{"doc_id": 0}', "resps"),
        ('{"doc_id": 0, "resps": [], "filtered_resps": []}', "arguments"),
        ('{"doc_id": 0, "resps": [], "filtered_resps": [], "arguments": {"a": "b"}}', "arguments"),
        ('{"doc_id": 0, "resps": [], "filtered_resps": [], "arguments": [[]]}', "arguments"),
        ('{"doc_id": 0, "metrics": "acc"}', "metrics"),
        ('{"doc_id": 0, "metrics": [1]}', "metrics"),
        ('{"doc_id": 0, "filter": 1}', "filter"),
        ("\xff", "UTF-8"),
    ],
)
def test_a_line_that_is_none_of_lm_eval_s_is_refused(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "samples_arc_2026-11-30T16-32-14.451399.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n")
    with pytest.raises(RunError, match=words) as caught:
        read_results(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
    path.write_text("\n")
    with pytest.raises(RunError, match="no answer to task arc"):
        read_results(tmp_path)


def test_damaged_files_bring_nothing_but_run_errors(written: Path, tmp_path: Path) -> None:
    draw = random.Random(11)
    for number in range(120):
        folder = tmp_path / str(number)
        shutil.copytree(folder_of(written, "other"), folder)
        path = draw.choice(sorted(folder.iterdir()))
        data = bytearray(path.read_bytes())
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(data))
            match draw.randrange(3):
                case 0:
                    data[place] = draw.choice(b'{}[]",:0189-NaIe\x00\xff\n')
                case 1:
                    del data[place : place + draw.randint(1, 40)]
                case _:
                    data[place:place] = draw.choice(
                        (b"null", b"[]", b"{}", b"NaN", b"1e999", b"9" * 400, b'"x"', b"true")
                    )
        path.write_bytes(bytes(data))
        try:
            read_results(folder)
        except MoePruneError as error:
            assert "\n" not in str(error)


def test_whatever_else_is_named_is_called_by_its_kind(tmp_path: Path) -> None:
    base = run("native", answers("arc", "10"))
    (tmp_path / "runs" / "deep" / "native").mkdir(parents=True)
    base.save(tmp_path / "runs" / "deep" / "native")
    assert read_results(tmp_path / "runs")[0][1] == base
    folder = tmp_path / "runs" / "deep" / "native"
    for path in (folder, folder / "run.json", folder / "samples.jsonl"):
        assert read_results(path)[0][1] == base
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3_moe"}')
    (tmp_path / "plan.json").write_text('{"schema": "moeprune.plan/1"}')
    (tmp_path / "rows.jsonl").write_text('{"id": "1", "prompt": "x"}\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped" / "samples_arc_2026-11-30T16-32-14.451399.jsonl")
    for name, kind in (
        ("model", "the folder of a model"),
        ("plan.json", "a plan"),
        ("rows.jsonl", "rows|JSON"),
        ("empty", "an empty folder"),
        ("piped", "is a folder"),
        ("nowhere", "does not exist"),
    ):
        with pytest.raises(RunError, match=kind) as caught:
            read_results(tmp_path / name)
        assert "moeprune eval" in str(caught.value) and "log_samples" in str(caught.value)
