"""What a scan says, of what it measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeprune.core.scan import Scan
from moeprune.core.scan_findings import Finding, findings
from moeprune.core.scan_picks import picks_of
from moeprune.core.scan_verdict import family_verdict
from moeprune.stages.eval_texts import splits
from moeprune.stages.evaluating import Evaluated
from moeprune.stages.scan_points import Points
from moeprune.stages.scan_rows import PairedRuns, rows_of

if TYPE_CHECKING:
    from moeprune.evaluate.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was seen of the loaded model before it was asked anything.

    Attributes:
        check: of the self-check.
        gains: of each variant, by router.
    """

    check: Mapping[str, Any]
    gains: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What the commands of a result name.

    Attributes:
        model: as the user named it.
        plan: file; None: there is no plan.
        output: folder of the scan; None: nothing was written.
        revision: of a Hub model; None: its own.
        trust_remote_code: code that comes with the model is run.
    """

    model: str
    plan: str | None
    output: str | None
    revision: str | None = None
    trust_remote_code: bool = False

    def after(self, found: Sequence[Finding]) -> tuple[str, ...]:
        """What to run next: the questions in pairs, and the export of what is recommended."""
        model = [self.model, *([] if self.revision is None else ["--revision", self.revision])]
        loaded = [*model, *["--trust-remote-code"] * self.trust_remote_code]
        lines = []
        if self.output is not None:
            base = [] if self.plan is None else [f"{self.output}/native"]
            lines.append(["moeprune", "compare", *base, self.output])
        for finding in found:
            if finding.name == "recommended":
                plan = [] if self.plan is None else ["--plan", self.plan]
                policy = [*plan, "--k1", str(finding.k1), "--k2", str(finding.k2)]
                edges = [one for one in found if one.name == "edge" and one.k1 == finding.k1]
                more = {one.k2 for one in edges if one.k2 is not None} - {finding.k2}
                if more or any(one.name == "unvalidated" for one in found):
                    ranks = ",".join(map(str, [finding.k2, *sorted(more)]))
                    words = [*policy[:-1], ranks, "--tasks", "TASKS"]
                    lines.append(["moeprune", "scan", *loaded, "-o", "SCAN", *words])
                lines.append(["moeprune", "export", *model, "-o", "OUT", *policy])
        return tuple(map(shlex.join, lines))


def result_of(done: Evaluated, points: Points, *, chunk: int, commands: Commands) -> Scan:
    """The result, with everything that is to be said of it.

    Args:
        done: the evaluation.
        points: its grid.
        chunk: tokens of a window.
        commands: to be run next.
    """
    asked, axes = done.asked, points.axes
    layout, looked = asked.routed, done.seen
    assert isinstance(looked, Looked)
    rows = rows_of(asked, points.points, done.variants, done.runs, looked.gains)
    verdict = family_verdict(layout.model_type, layout.gating, renormalises=layout.renormalises)
    picks = picks_of(rows, axes)
    found = findings(
        rows,
        picks,
        axes=axes,
        verdict=verdict,
        family=layout.model_type,
        paired=PairedRuns(done.runs),
    )
    base = done.runs[0]
    return Scan(
        model=base.model,
        plan=base.variant.get("plan"),
        native={"k1": axes.native.k1, "k2": rows[0].point.k2, "experts": axes.experts},
        verdict=verdict,
        rows=rows,
        texts={
            name: _text(requests, min(chunk, done.exam.length))
            for name, requests in splits(done.exam.tasks, done.exam.requests).items()
        },
        check=looked.check,
        picks=picks,
        findings=found,
        guards=base.guards,
        commands=commands.after(found),
        provenance=base.provenance,
    )


def _text(requests: Sequence[Request], chunk: int) -> dict[str, Any]:
    """What tells the text of a scan from another: the hash of its token chunks."""
    from moeprune.evaluate.requests import inputs_sha256

    return {
        "sha256": inputs_sha256(requests),
        "chunks": len(requests),
        "tokens": sum(int(request.pieces[0].continuation.size) for request in requests),
        "chunk": chunk,
        "names": list(dict.fromkeys(request.question.domain for request in requests)),
    }
