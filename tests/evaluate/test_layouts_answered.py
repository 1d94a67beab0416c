"""From published rows to answers: the run folder has what lm-eval logs of its own tasks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from local_harness import harness_model
from published_rows import PUBLISHED
from test_layouts import INSTEAD, harness

import moeprune
from moeprune.core.run import Run
from moeprune.observe.load import load_causal_lm, load_tokenizer

NAMES = ("arc", "ceval", "hellaswag", "mmlu", "openbookqa", "piqa", "winogrande")


@pytest.fixture(scope="module")
def answered(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Our run, and the harness's samples by task, each of one load of the same model."""
    folder, model = tmp_path_factory.mktemp("answered"), tiny("qwen3_moe")
    for name in NAMES:
        rows = folder / f"{name}.jsonl"
        rows.write_text("".join(f"{json.dumps(row)}\n" for row in PUBLISHED[name]), "utf-8")
        made = moeprune.tasks(name, output=folder / "tasks", questions=str(rows), shots="none")
        # The harness's mmlu and ceval name one subject.
        text = made.path.read_text("utf-8")
        text = text.replace("about {domain}.", "about abstract algebra.")
        for key, value in INSTEAD.get(name, {}).items():
            line = next(line for line in text.splitlines() if line.startswith(f"{key} = "))
            value = value.replace("{domain}", "法学")
            text = text.replace(line, f"{key} = {json.dumps(value, ensure_ascii=False)}")
        made.path.write_text(text, "utf-8")
    moeprune.eval(model, output=folder / "run", tasks=[str(folder / "tasks")], chat_template=False)
    live = harness_model(load_causal_lm(model, dtype="float32"), load_tokenizer(model))
    tasks = {name: harness(name, PUBLISHED[name]) for name in NAMES}
    found = simple_evaluate(
        model=live,
        tasks=list(tasks.values()),
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    theirs = {
        name: sorted(found["samples"][task.task_name], key=lambda sample: sample["doc_id"])
        for name, task in tasks.items()
    }
    return Run.load(folder / "run"), theirs


@pytest.mark.parametrize("name", NAMES)
def test_a_public_data_set_gets_the_harness_answers(name: str, answered: Any) -> None:
    run, theirs = answered
    ours = run.of_task(name)
    assert len(ours) == len(theirs[name]) == len(PUBLISHED[name])
    for sample, other in zip(ours, theirs[name], strict=True):
        logliks = sample.details.get("loglik", sample.details.get("logprobs"))
        assert logliks == pytest.approx([each for each, _ in other["filtered_resps"]], abs=1e-4)
        for metric in {"acc", "acc_norm"} & set(sample.metrics):
            assert sample.metrics[metric] == other[metric]
