"""The result of a scan of k₁ and k₂: what was measured, row by row, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from moeprune.core.scan_findings import Finding
from moeprune.core.scan_picks import Pick
from moeprune.core.scan_rows import Row
from moeprune.core.scan_verdict import FamilyVerdict

SCHEMA = "moeprune.scan/1"
SCAN_FILE = "scan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The result of ``moeprune scan``.

    Attributes:
        model: as in ``run.json``.
        plan: what was removed before, as in ``run.json``; None: nothing.
        native: the model's own ``k1`` and ``k2``, and its widest layer's ``experts``.
        verdict: what was expected of the family.
        rows: the native model first.
        texts: split -> ``sha256`` of its token chunks, how many ``chunks`` and ``tokens``.
        check: what the self-check saw.
        picks: the best k₂ of each k₁, by perplexity and by each task.
        findings: what is to be said, in order.
        guards: what the protocol guards found, as in ``run.json``.
        commands: what to run next.
        provenance: dtype, device, versions.
    """

    model: Mapping[str, Any]
    plan: Mapping[str, Any] | None
    native: Mapping[str, int]
    verdict: FamilyVerdict
    rows: tuple[Row, ...]
    texts: Mapping[str, Mapping[str, Any]]
    check: Mapping[str, Any]
    picks: tuple[Pick, ...]
    findings: tuple[Finding, ...]
    guards: tuple[Mapping[str, Any], ...]
    commands: tuple[str, ...]
    provenance: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """What ``scan.json`` holds: all but the commands, which name places."""
        return {
            "schema": SCHEMA,
            "model": dict(self.model),
            "plan": None if self.plan is None else dict(self.plan),
            "native": dict(self.native),
            "verdict": self.verdict.to_json(),
            "rows": [row.to_json() for row in self.rows],
            "texts": {name: dict(split) for name, split in self.texts.items()},
            "self_check": dict(self.check),
            "picks": [asdict(pick) for pick in self.picks],
            "findings": [asdict(finding) for finding in self.findings],
            "guards": [dict(guard) for guard in self.guards],
            "provenance": dict(self.provenance),
        }
