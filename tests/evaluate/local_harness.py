"""lm-evaluation-harness on tasks that lie in a folder: YAML and JSON files, no network."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager


def harness_model(model: Any, tokenizer: Any, **how: Any) -> HFLM:
    return HFLM(pretrained=model, tokenizer=tokenizer, **{"batch_size": 4, **how})


def harness_samples(
    lm: HFLM,
    folder: Path,
    task: Mapping[str, Any],
    *,
    rows: Sequence[Mapping[str, Any]],
    shots: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """What the harness logs of each row, in the order of the rows.

    Args:
        lm: the model.
        folder: to write the task into.
        task: its YAML, without a name and a data set.
        rows: of the split that is asked.
        shots: of the split that the first ``num_fewshot`` shots come from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {"test": folder / "test.json"}
    files["test"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = {
        "task": "local",
        "dataset_path": "json",
        "test_split": "test",
        "metadata": {"version": 1},
        **task,
    }
    if shots:
        files["dev"] = folder / "dev.json"
        files["dev"].write_text("".join(json.dumps(row) + "\n" for row in shots))
        whole |= {"fewshot_split": "dev", "fewshot_config": {"sampler": "first_n"}}
        whole["num_fewshot"] = whole.get("num_fewshot", len(shots))
    whole["dataset_kwargs"] = {
        "data_files": {split: str(path) for split, path in files.items()},
        "cache_dir": str(folder / "cache"),
    }
    (folder / "local.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    found = simple_evaluate(
        model=lm,
        tasks=["local"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        verbosity="ERROR",
    )
    return sorted(found["samples"]["local"], key=lambda sample: sample["doc_id"])
