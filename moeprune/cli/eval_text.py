"""How the runs of an evaluation read on a terminal: words and figures, nothing is computed anew."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moeprune.cli.agreement_text import agreement_text
from moeprune.cli.answer_loss_text import answer_loss_text
from moeprune.cli.text import table
from moeprune.core.policy import RoutingPolicy
from moeprune.core.run import Run

_HEAD = ("task", "kind", "n", "accuracy", "±", "worst domain", "truncated", "p99 tokens", "ppl")
_Z = 1.959964  # 95 % of a normal distribution
_NOTHING = "-"


def eval_json(runs: Sequence[Run], output: Path) -> dict[str, Any]:
    """What ``moeprune eval --json`` prints."""
    return {
        "output": str(output),
        "runs": [
            {
                "name": run.name,
                "folder": str(folder),
                "model": dict(run.model),
                "variant": dict(run.variant),
                "tasks": {
                    name: {"kind": task.get("kind"), "summary": task.get("summary")}
                    for name, task in run.tasks.items()
                },
                **({"agreement": dict(run.agreement)} if run.agreement else {}),
                **({"answer_loss": dict(run.answer_loss)} if run.answer_loss else {}),
                "guards": [dict(guard) for guard in run.guards],
            }
            for run, folder in zip(runs, _folders(runs, output), strict=True)
        ],
    }


def eval_text(runs: Sequence[Run], output: Path, *, said: Collection[str] = ()) -> str:
    """What it prints for people: a table a variant, the guards' findings, and what to do next.

    Args:
        runs: of the evaluation.
        output: where they lie.
        said: findings that were printed before a question was asked.
    """
    parts = []
    for run in runs:
        parts.append(f"{_title(run)}\n{table(list(_rows(run)))}")
        if run.agreement:
            parts.append(agreement_text(run.agreement))
        if run.answer_loss:
            parts.append(answer_loss_text(run.answer_loss))
    guards = (guard for run in runs for guard in run.guards if guard["text"] not in said)
    found = list(dict.fromkeys((guard["level"], guard["text"]) for guard in guards))
    lines = [f"{'not valid' if level == 'stop' else 'warning'}: {text}" for level, text in found]
    accuracies = "± half of the 95 % interval of an accuracy on its own; for differences compare "
    folders = _folders(runs, output)
    if len(runs) == 1:
        lines.append(f"{accuracies}it with another run:")
        lines.append(f"  moeprune compare BASE {shlex.quote(str(folders[0]))}")
    else:
        lines.append(f"{accuracies}them in pairs:")
        # Of a folder, the one run of the model as it is becomes the base.
        whole = sum(not run.variant for run in runs) == 1
        named = shlex.quote(str(output))
        lines.append(f"  moeprune compare {named if whole else f'BASE {named}'}")
    return "\n\n".join([*parts, "\n".join(lines)])


def _folders(runs: Sequence[Run], output: Path) -> list[Path]:
    """Where each run lies; a folder of runs has one called as the run."""
    own = (output / "run.json").is_file()
    return [output if own else output / run.name for run in runs]


def _title(run: Run) -> str:
    plan = run.variant.get("plan")
    parts = [f"{run.name}: {run.model.get('name', 'a model')}"]
    if plan:
        how = "exported" if "exported" in run.variant else "masked"
        parts.append(f"{plan['method']}, {plan['ratio']:.1%} of its experts removed ({how})")
    if policy := run.variant.get("policy"):
        parts.append(policy_text(policy))
    if scheme := run.variant.get("quantised"):
        parts.append(f"experts in {scheme}")
    if folded := run.variant.get("folded_gain"):
        parts.append(f"{policy_text(folded)} folded into it")
    return ", ".join(parts)


def policy_text(policy: Mapping[str, Any]) -> str:
    """How a run's experts were chosen and weighed: ``k1=4 k2=16``."""
    gain = policy.get("gain", 1.0)
    stated = {**policy, "gain": tuple(gain) if isinstance(gain, list) else gain}
    return RoutingPolicy(**stated).label


def _rows(run: Run) -> Iterator[list[str]]:
    summaries = {name: task.get("summary") or {} for name, task in run.tasks.items()}
    others = {name: _others(summary) for name, summary in summaries.items()}
    more = sorted({metric for found in others.values() for metric in found})
    yield [*_HEAD, *more]
    for name, summary in summaries.items():
        row = [name, str(run.tasks[name].get("kind", _NOTHING)), *_figures(summary)]
        yield [*row, *(_number(others[name].get(metric)) for metric in more)]


def _figures(summary: Mapping[str, Any]) -> Iterator[str]:
    accuracy, questions = summary.get("accuracy"), summary.get("questions", 0)
    yield f"{questions:,}"
    yield _percent(accuracy)
    yield _NOTHING if accuracy is None else f"{100 * half_width(accuracy, questions):.1f}"
    worst = summary.get("worst_domain")
    domains = summary.get("domains", {})
    if worst is None or len(domains) < 2:
        yield _NOTHING
    else:
        of_worst = domains[worst]
        least = of_worst.get("accuracy")
        yield f"{worst} {_percent(least) if least is not None else _perplexity(of_worst)}"
    yield _percent(summary.get("truncated"))
    lengths = summary.get("lengths")
    yield f"{lengths['p99']:,}" if lengths else _NOTHING
    yield _perplexity(summary)


def half_width(share: float, number: int) -> float:
    """Half of Wilson's 95 % interval for a share of so many."""
    spread = share * (1 - share) / number + _Z**2 / (4 * number**2)
    return _Z * math.sqrt(spread) / (1 + _Z**2 / number)


def _others(summary: Mapping[str, Any]) -> dict[str, float]:
    """Metrics that say something else than the accuracy does."""
    accuracy = summary.get("accuracy")
    return {
        name: value
        for name, value in summary.get("metrics", {}).items()
        if value != accuracy or accuracy is None
    }


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{share:.1%}"


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.4g}"


def _perplexity(summary: Mapping[str, Any]) -> str:
    found = summary.get("perplexity")
    return _number(found.get("per_token")) if found else _NOTHING
