"""demo: the whole pipeline on the embedded model, every artefact left in one folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.artefact import canonical_json, write_bytes
from moeprune.core.plan import PrunePlan
from moeprune.core.progress import OnProgress, Progress, ignore
from moeprune.errors import OutputError, VerificationError
from moeprune.packaged import calibration_folder
from moeprune.stages.calibrate import calibrate
from moeprune.stages.export import export
from moeprune.stages.plan import plan
from moeprune.stages.verify import verify

METHODS = ("reap", "rm-uniform", "mesa", "random")
RATIOS = (0.25, 0.5)


@dataclass(frozen=True, slots=True)
class Variant:
    """One row of the demo's table.

    Attributes:
        name: ``"unpruned"`` or the method.
        ratio: share of experts removed.
        accuracy: domain -> share of held-out questions answered right.
        domain_loss: domain -> share of router mass removed, empty for the unpruned model.
        difference: largest logit difference found by verify, None for the unpruned model.
    """

    name: str
    ratio: float
    accuracy: Mapping[str, float]
    domain_loss: Mapping[str, float]
    difference: float | None

    @property
    def worst_domain(self) -> str:
        """The domain with the lowest accuracy; of equals, the first by name."""
        return min(sorted(self.accuracy), key=self.accuracy.__getitem__)

    @property
    def mean(self) -> float:
        """Accuracy averaged over domains."""
        return sum(self.accuracy.values()) / len(self.accuracy)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo measured.

    Attributes:
        output: the folder that holds every artefact.
        variants: the unpruned model first, then ratio by ratio, method by method.
        questions: domain -> number of held-out questions.
        entropy_ratio: mean router entropy over its maximum.
        regime: ``"over-dispersed"`` or ``"standard"``.
    """

    output: Path
    variants: tuple[Variant, ...]
    questions: Mapping[str, int]
    entropy_ratio: float
    regime: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object of plain types."""
        return {
            "schema": "moeprune.demo/1",
            "questions": dict(self.questions),
            "entropy_ratio": self.entropy_ratio,
            "regime": self.regime,
            "variants": [
                {
                    "name": variant.name,
                    "ratio": variant.ratio,
                    "accuracy": dict(variant.accuracy),
                    "mean": variant.mean,
                    "worst_domain": variant.worst_domain,
                    "domain_loss": dict(variant.domain_loss),
                    "verify_difference": variant.difference,
                }
                for variant in self.variants
            ],
        }


def demo(output: str | Path = "demo-out", *, on_progress: OnProgress = ignore) -> DemoResult:
    """Calibrate, plan, export, verify and question the embedded model.

    Leaves ``stats.safetensors``, ``plans/``, ``exports/``, ``answers.jsonl`` and ``results.json``
    in the folder. A demo that does not come to its end (an interrupt, a full disk) takes the
    folder away again; one that finds a wrong export leaves it, to be looked at.

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
    questions = {name: data / "questions" / f"{name}.jsonl" for name in domains}
    examiner = _Examiner(questions, model, output / "answers.jsonl")
    variants = [examiner.examine("unpruned", model, None, None)]
    made: PrunePlan | None = None
    steps = [(ratio, method) for ratio in RATIOS for method in METHODS]
    for done, (ratio, method) in enumerate(steps):
        on_progress(Progress("plan, export, verify, ask", done, len(steps), "variants"))
        name = f"{method}-{ratio:g}"
        plan_file = output / "plans" / f"{name}.json"
        made = plan(stats_file, output=plan_file, method=method, ratio=ratio)
        folder = export(model, plan=plan_file, output=output / "exports" / name)
        report = verify(folder, source=model, forward=True)
        if not report.ok:
            raise VerificationError(f"{folder} is not what its plan says: {report.problems[0]}")
        assert report.logits is not None
        variants.append(examiner.examine(method, folder, made, report.logits.largest))
    on_progress(Progress("plan, export, verify, ask", len(steps), len(steps), "variants"))
    assert made is not None
    result = DemoResult(
        output=output,
        variants=tuple(variants),
        questions=examiner.counts,
        entropy_ratio=made.routing["entropy_ratio"],
        regime=made.routing["regime"],
    )
    examiner.save()
    body = json.dumps(result.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    write_bytes(output / "results.json", body.encode())
    return result


class _Examiner:
    """Asks every variant the same questions and keeps the answers."""

    def __init__(self, questions: Mapping[str, Path], tokenizer: Path, answers: Path) -> None:
        from moeprune.evaluate.questions import read_questions
        from moeprune.observe.load import load_tokenizer

        self._questions = {name: read_questions(path) for name, path in questions.items()}
        self._tokenizer = load_tokenizer(tokenizer)
        self._answers = answers
        self._lines: list[str] = []

    @property
    def counts(self) -> dict[str, int]:
        return {domain: len(asked) for domain, asked in self._questions.items()}

    def examine(
        self, name: str, folder: Path, made: PrunePlan | None, difference: float | None
    ) -> Variant:
        from moeprune.evaluate.questions import answer_questions
        from moeprune.observe.load import load_causal_lm

        model = load_causal_lm(folder, dtype="float32")
        accuracy = {}
        ratio = made.ratio if made else 0.0
        for domain, asked in self._questions.items():
            right = answer_questions(model, self._tokenizer, asked)
            accuracy[domain] = sum(right) / len(right)
            for question, is_right in zip(asked, right, strict=True):
                line = {"variant": name, "ratio": ratio, "domain": domain, "id": question.id}
                self._lines.append(canonical_json({**line, "correct": is_right}))
        return Variant(name, ratio, accuracy, made.domain_loss if made else {}, difference)

    def save(self) -> None:
        write_bytes(self._answers, ("\n".join(self._lines) + "\n").encode())
