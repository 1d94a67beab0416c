"""What lm-eval writes with ``--log_samples``: samples_TASK_DATE.jsonl, results_DATE.json.

Of several dates, each task's newest is read. The tasks of a group (MMLU's 57 subjects) become the
domains of one task, if they are asked and scored alike. A question is told by its ``doc_id``, which
does not depend on the order of the file. What went into the model is not logged as tokens; the
texts are, and their hash is the ``input`` that two runs must share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeprune.artefact import parse_json, read_json
from moeprune.core.run import Run
from moeprune.core.sample import Sample
from moeprune.errors import RunError
from moeprune.evaluate.harness.samples import PREFIX, samples_of
from moeprune.evaluate.runs._lm_eval_groups import families
from moeprune.evaluate.runs._lm_eval_lines import read_lines

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}(?:\.[0-9]+)?"
_SAMPLES = re.compile(rf"samples_(?P<task>.+)_(?P<date>{_DATE})\.jsonl")
_RESULTS = re.compile(rf"results_(?P<date>{_DATE})\.json")
_WHAT = "the results of lm-eval, which 'lm_eval --log_samples --output_path' writes"


def holds(path: Path) -> bool:
    """Whether it is a folder with such files, or one file of samples."""
    if path.is_file():
        return bool(_SAMPLES.fullmatch(path.name)) or _is_log(path)
    return path.is_dir() and any(
        item.is_file()  # a pipe would be waited for
        for item in path.iterdir()
        if _SAMPLES.fullmatch(item.name) or _RESULTS.fullmatch(item.name)
    )


def read(path: Path) -> Run:
    """Read it.

    Raises:
        RunError: there are results and no samples, or a file is malformed.
    """
    folder = path if path.is_dir() else path.parent
    files = {path: _named(path)} if path.is_file() else _newest(folder)
    if not files:
        raise RunError(
            f"{path} holds results of lm-eval and no answers, so nothing can be paired. Run "
            "lm_eval with --log_samples."
        )
    dates = {date for _, date in files.values()}
    told = {date: _results(folder / f"results_{date}.json") for date in sorted(dates)}
    alone: dict[str, tuple[Sample, ...]] = {}
    for file, (name, _) in sorted(files.items(), key=lambda item: item[1]):
        # File by file: with their prompts, the logs of a run can be gigabytes.
        alone[name] = samples_of(read_lines(file), part=name, where=str(file))
        if not alone[name]:
            raise RunError(f"{file} holds no answer to task {name}. Run lm_eval again.")
    whole = families(alone, _merged(told, "group_subtasks"))
    answered = [_within(samples, name, whole[name]) for name, samples in alone.items()]
    order = dict.fromkeys(samples[0].task for samples in answered)
    last = told[max(dates)]
    return Run(
        name=_model(last, folder),
        model={"name": _model(last, folder)},
        tasks={
            task: _entry([one for one in answered if one[0].task == task], told) for task in order
        },
        samples=tuple(
            sample for task in order for one in answered if one[0].task == task for sample in one
        ),
        provenance=_provenance(last, dates),
    )


def _within(samples: Sequence[Sample], part: str, whole: str | None) -> tuple[Sample, ...]:
    """The answers of a part of a group, named as ``samples_of`` names them."""
    if whole is None:
        return tuple(samples)
    task = f"{PREFIX}{whole}"
    return tuple(replace(sample, task=task, id=f"{part}/{sample.id}") for sample in samples)


def _entry(
    answered: Sequence[Sequence[Sample]], told: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What ``Run.tasks`` says of a task, from that of each of its parts."""
    versions, shots = _merged(told, "versions"), _merged(told, "n-shot")
    better = _merged(told, "higher_is_better").get(answered[0][0].domain)
    parts = [samples[0].domain for samples in answered]
    configs = _merged(told, "configs")
    written = {
        name: configs[name]["generation_kwargs"]
        for name in parts
        if isinstance(configs.get(name), Mapping) and configs[name].get("generation_kwargs")
    }
    scores = dict.fromkeys(name for sample in answered[0] for name in sample.metrics)
    return {
        "kind": "lm_eval",
        "version": {name: str(versions[name]) for name in parts if name in versions},
        "shots": {name: shots[name] for name in parts if name in shots},
        "generation": written,
        "metric": next(iter(scores), None),
        **({"higher_is_better": better} if isinstance(better, Mapping) else {}),
    }


def _merged(told: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, Any]:
    """One key of all results files; what a later one says holds."""
    found: dict[str, Any] = {}
    for date in sorted(told):
        value = told[date].get(key)
        found.update(value if isinstance(value, dict) else {})
    return found


def _newest(folder: Path) -> dict[Path, tuple[str, str]]:
    found: dict[str, tuple[str, Path]] = {}
    for item in folder.iterdir():
        match = _SAMPLES.fullmatch(item.name)
        if match and item.is_file():
            newer = (match["date"], item)
            found[match["task"]] = max(found.get(match["task"], newer), newer)
    return {path: (task, date) for task, (date, path) in found.items()}


def _named(path: Path) -> tuple[str, str]:
    match = _SAMPLES.fullmatch(path.name)
    return (match["task"], match["date"]) if match else (path.stem, "")


def _is_log(path: Path) -> bool:
    """Whether the first line of a file is one of lm-eval's, whatever the file is called."""
    if path.suffix != ".jsonl":
        return False
    try:
        with path.open("rb") as file:
            body = parse_json(file.readline().decode("utf-8-sig"))
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and {"doc_id", "doc", "target"} <= set(body)


def _results(path: Path) -> Mapping[str, Any]:
    if not path.is_file():  # samples can be logged, moved or uploaded alone
        return {}
    body = read_json(path, error=RunError, what=_WHAT)
    if not isinstance(body, dict):
        raise RunError(f"{path} is not a JSON object; it should be {_WHAT}.")
    return body


def _model(results: Mapping[str, Any], folder: Path) -> str:
    """A short name of the model: the last part of a path."""
    name = results.get("model_name")
    if not isinstance(name, str) or not name:
        return folder.name
    return name.rstrip("/").rpartition("/")[2] or name


def _provenance(results: Mapping[str, Any], dates: set[str]) -> dict[str, Any]:
    config = results.get("config")
    config = config if isinstance(config, dict) else {}
    version, dtype = results.get("lm_eval_version"), config.get("model_dtype")
    found: dict[str, Any] = {"harness": f"lm-eval {version}" if version else "lm-eval"}
    if isinstance(dtype, str):
        found["dtype"] = dtype.removeprefix("torch.")
    return {**found, "dates": sorted(date for date in dates if date)}
