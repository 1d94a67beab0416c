"""Local tasks of lm-eval for tests: a YAML file each, over JSONL beside it, and a group of two."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NAMES = ("tiny_choice", "tiny_written", "tiny_text")
GROUP = "tiny_group"  # the first two

_CHOICE = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choice.jsonl, train: {folder}/shots.jsonl}}}}
output_type: multiple_choice
test_split: test
training_split: train
fewshot_split: train
num_fewshot: 2
doc_to_text: "{{{{question}}}} A:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
metadata: {{version: 3.0}}
"""

_WRITTEN = """
task: tiny_written
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/written.jsonl}}}}
output_type: generate_until
test_split: test
num_fewshot: 0
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 4}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
filter_list:
  - name: strict
    filter: [{{function: regex, regex_pattern: "^(\\\\w+)$"}}, {{function: take_first}}]
  - name: whole
    filter: [{{function: take_first}}]
"""

_TEXT = """
task: tiny_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/text.jsonl}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - {{metric: word_perplexity}}
  - {{metric: byte_perplexity}}
  - {{metric: bits_per_byte}}
"""

_GROUP = """
group: tiny_group
task: [tiny_choice, tiny_written]
"""


def write_tasks(folder: Path, questions: Path) -> Path:
    """Write the tasks, with questions of the built-in ones, into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    _rows(folder / "choice.jsonl", [_larger(i, i + 3, right=i % 3) for i in range(9)])
    _rows(folder / "shots.jsonl", [_larger(i, i + 1, right=1) for i in range(20, 26)])
    asked = [json.loads(line) for line in questions.read_text().splitlines()[:6]]
    long = {"prompt": "Say the alphabet. A:", "answer": "never"}
    _rows(folder / "written.jsonl", [*({k: r[k] for k in long} for r in asked), long])
    _rows(folder / "text.jsonl", [{"text": "Ali has 9 pens. " * n} for n in (3, 60, 1)])
    for name, text in (
        ("choice", _CHOICE),
        ("written", _WRITTEN),
        ("text", _TEXT),
        ("group", _GROUP),
    ):
        (folder / f"{name}.yaml").write_text(text.format(folder=folder))
    return folder


def _larger(first: int, second: int, *, right: int) -> Mapping[str, Any]:
    return {
        "question": f"Which is larger, {first} or {second}?",
        "choices": [str(first), str(second), "same"],
        "answer": right,
    }


def _rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
