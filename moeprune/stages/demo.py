"""demo: the whole pipeline on the embedded model, every artefact left in one folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.artefact import write_bytes
from moeprune.core.plan import PrunePlan
from moeprune.core.progress import OnProgress, Progress, ignore
from moeprune.core.run import Run
from moeprune.errors import OutputError, VerificationError
from moeprune.packaged import calibration_folder
from moeprune.stages.calibrate import calibrate
from moeprune.stages.compare import compare
from moeprune.stages.demo_result import DemoResult, Variant
from moeprune.stages.eval import eval
from moeprune.stages.export import export
from moeprune.stages.plan import plan
from moeprune.stages.verify import verify

if TYPE_CHECKING:
    from moeprune.evaluate.comparison.variants import VariantComparison

METHODS = ("reap", "rm-uniform", "mesa", "random")
RATIOS = (0.25, 0.5)
UNPRUNED = "unpruned"
TASK = "held-out"
_STAGE = "plan, export, verify"
# To the letter: an answer with white space around it is another one.
_TASK_FILE = r"""schema = "moeprune.task/1"
questions = "held-out.jsonl"
kind = "generate"
max_new_tokens = 24
delimiter = ""
extract = 'regex:\A(\S(?:.*\S)?)\Z'
"""


def demo(output: str | Path = "demo-out", *, on_progress: OnProgress = ignore) -> DemoResult:
    """Calibrate, plan, export, verify, evaluate and compare, on the embedded model.

    Leaves ``stats.safetensors``, ``plans/``, ``exports/``, the task, ``runs/`` and
    ``results.json`` in the folder. A demo that does not come to its end (an interrupt, a full disk)
    takes the folder away again; one that finds a wrong export leaves it, to be looked at.

    Args:
        output: a folder that does not exist yet.
        on_progress: told of each step.

    Raises:
        OutputError: the folder exists or cannot be made.
        VerificationError: an export is not what its plan says; then something is badly wrong.
    """
    output = Path(output)
    data = calibration_folder() / "demo"
    try:
        for folder in (output, output / "plans", output / "exports"):
            folder.mkdir(parents=True)
    except FileExistsError:
        raise OutputError(f"{output} exists; name a new folder with -o, or remove it.") from None
    except OSError as problem:
        raise OutputError(f"cannot make {output}: {problem.strerror or problem}.") from problem
    with ExitStack() as unfinished:
        unfinished.callback(shutil.rmtree, output, ignore_errors=True)
        try:
            result = _run(output, data, on_progress)
        except VerificationError:
            unfinished.pop_all()
            raise
        unfinished.pop_all()
    return result


def _run(output: Path, data: Path, on_progress: OnProgress) -> DemoResult:
    model = data / "model"
    from moeprune.observe.sources import builtin_names

    domains = {name: str(data / "calibration" / f"{name}.jsonl") for name in builtin_names()}
    stats_file = output / "stats.safetensors"
    calibrate(model, output=stats_file, domains=domains, on_progress=on_progress)
    plans: dict[str, PrunePlan] = {}
    differences: dict[str, float] = {}
    steps = [(ratio, method) for ratio in RATIOS for method in METHODS]
    for done, (ratio, method) in enumerate(steps):
        on_progress(Progress(_STAGE, done, len(steps), "variants"))
        name = f"{method}-{ratio:g}"
        plan_file = output / "plans" / f"{name}.json"
        plans[name] = plan(stats_file, output=plan_file, method=method, ratio=ratio)
        folder = export(model, plan=plan_file, output=output / "exports" / name)
        report = verify(folder, source=model, forward=True)
        if not report.ok:
            raise VerificationError(f"{folder} is not what its plan says: {report.problems[0]}")
        assert report.logits is not None
        differences[name] = report.logits.largest
    on_progress(Progress(_STAGE, len(steps), len(steps), "variants"))
    # Masked in memory: verify has just shown that the exports have the same logits.
    runs = eval(
        model,
        output=output / "runs",
        tasks=_task(output, {name: data / "questions" / f"{name}.jsonl" for name in domains}),
        variants={UNPRUNED: None, **plans},
        dtype="float32",
        on_progress=on_progress,
    )
    result = _result(output, runs, plans, differences)
    body = json.dumps(result.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    write_bytes(output / "results.json", body.encode())
    return result


def _task(output: Path, files: Mapping[str, Path]) -> Path:
    """One task of the questions of all domains: what ``moeprune eval --tasks`` takes."""
    rows = [
        json.dumps({**json.loads(line), "domain": domain}, ensure_ascii=False)
        for domain, path in files.items()
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    write_bytes(output / f"{TASK}.jsonl", ("\n".join(rows) + "\n").encode())
    write_bytes(output / f"{TASK}.toml", _TASK_FILE.encode())
    return output / f"{TASK}.toml"


def _result(
    output: Path,
    runs: Sequence[Run],
    plans: Mapping[str, PrunePlan],
    differences: Mapping[str, float],
) -> DemoResult:
    base, *others = runs
    compared = {found.name: found for found in compare(base, others).variants}
    made = next(iter(plans.values()))
    domains = base.tasks[TASK]["summary"]["domains"]
    return DemoResult(
        output=output,
        variants=(
            Variant(UNPRUNED, 0.0, _accuracy(base), {}, None),
            *(
                _variant(run, plans[run.name], differences[run.name], compared[run.name])
                for run in others
            ),
        ),
        questions={domain: figures["questions"] for domain, figures in domains.items()},
        entropy_ratio=made.routing["entropy_ratio"],
        regime=made.routing["regime"],
    )


def _variant(run: Run, made: PrunePlan, difference: float, compared: VariantComparison) -> Variant:
    paired = compared.tasks[TASK].overall
    return Variant(
        name=made.method,
        ratio=made.ratio,
        accuracy=_accuracy(run),
        domain_loss=made.domain_loss,
        difference=difference,
        lost=paired.to_wrong,
        won=paired.to_right,
        p=paired.p_holm,
    )


def _accuracy(run: Run) -> dict[str, float]:
    domains: Mapping[str, Any] = run.tasks[TASK]["summary"]["domains"]
    return {domain: figures["accuracy"] for domain, figures in domains.items()}
