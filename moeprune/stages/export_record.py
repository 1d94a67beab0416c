"""moeprune.json of an export: what was done, to which model, and how large it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import moeprune
from moeprune.checkpoint.edits import TensorEdit
from moeprune.core.plan import PrunePlan
from moeprune.core.policy import RoutingPolicy
from moeprune.stages.exported import SCHEMA
from moeprune.stages.folded import FoldedGain
from moeprune.stages.identify import OpenModel
from moeprune.stages.next_token import NextToken


def record_text(
    *,
    opened: OpenModel,
    plan: PrunePlan | None,
    form: str,
    policy: RoutingPolicy | None,
    gain: FoldedGain | None = None,
    quantisation: Mapping[str, Any] | None = None,
    changes: Mapping[tuple[str, ...], Any],
    next_token: NextToken,
    size: Mapping[str, Any],
    warnings: Sequence[str],
    left_out: Iterable[str],
) -> str:
    """The text of moeprune.json.

    Args:
        opened: the source.
        plan: which experts stay; None: all.
        form: how layers of different counts were written.
        policy: k₁ and k₂; None: the source's own.
        gain: what stands for k₁ and k₂ in config.json and in the weights.
        quantisation: how weights are stored, see ``Quantised.to_json``; None: as in the source.
        changes: path in config.json -> new value.
        next_token: what became of next-token layers.
        size: see :func:`size_of`.
        warnings: one line each.
        left_out: files of the source that the export does not have.
    """
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "moeprune": moeprune.__version__,
        "source": {"name": opened.facts.name, "fingerprint": opened.facts.fingerprint},
        "form": form,
        "changed_config_keys": [".".join(path) for path in changes],
        "next_token_layers": next_token.record(),
        "size": dict(size),
        "left_out": list(left_out),
        "plan": None if plan is None else plan.to_json(),
    }
    if policy is not None:
        body["policy"] = policy.to_json()
    if gain is not None:
        body["folded_gain"] = gain.to_json()
    if quantisation is not None:
        body["quantisation"] = dict(quantisation)
    if warnings:
        body["warnings"] = list(warnings)
    return json.dumps(body, indent=1) + "\n"


def size_of(
    opened: OpenModel, plan: PrunePlan | None, edits: Sequence[TensorEdit]
) -> dict[str, Any]:
    """Bytes of all tensors before and after; and what the plan said, where that is not it."""
    after = sum(edit.info.nbytes for edit in edits)
    size: dict[str, Any] = {"bytes_before": opened.index.total_bytes, "bytes_after": after}
    planned = plan.size.get("bytes_after", after) if plan is not None else after
    return size if planned == after else size | {"bytes_planned": planned}
