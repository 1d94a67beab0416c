"""Plans that a person edited: which figures are stale, and which recorded promises must hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moeprune.artefact import canonical_json, sha256_bytes
from moeprune.core.rows import row_name, rows_of
from moeprune.errors import PlanError

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan


def kept_sha256(
    layer_ids: Sequence[int],
    sets: Sequence[str],
    keep: Sequence[Sequence[int]],
    schemes: Sequence[str] | None = None,
) -> str:
    """Hex SHA-256 over the lists of experts that stay, to tell whether they were edited.

    Where layers have schemes, it is over these too.
    """
    rows = zip(rows_of(layer_ids, sets), keep, strict=True)
    body: list[Any] = [[layer, expert_set, list(ids)] for (layer, expert_set), ids in rows]
    if schemes is not None:
        body = [[*row, scheme] for row, scheme in zip(body, schemes, strict=True)]
    return sha256_bytes(canonical_json(body).encode())


def is_edited(plan: PrunePlan) -> bool:
    """Whether the plan states figures, and they are not of the experts that it keeps."""
    figures = (plan.domain_loss, plan.worst_domain, plan.lower_bound, plan.size, plan.stability)
    if not any(bool(figure) for figure in (*figures, plan.predicted)):
        return False
    schemes = plan.quantize.schemes if plan.quantize else None
    return plan.kept_sha256 != kept_sha256(plan.layer_ids, plan.sets, plan.keep, schemes)


def without_stale(plan: PrunePlan) -> PrunePlan:
    """The plan itself; or if it was edited, without the figures of the plan before the edit."""
    if not is_edited(plan):
        return plan
    return replace(
        plan,
        domain_loss={},
        worst_domain=None,
        worst_domain_loss=None,
        predicted={},
        worst_predicted=None,
        lower_bound=None,
        size={},
        stability={},
        quantize=plan.quantize and plan.quantize.without_figures(),
        # Of the details only this is a fact of the model; an edit is held to it by check_promises.
        details={key: plan.details[key] for key in ("super_experts",) if key in plan.details},
        warnings=(*plan.warnings, EDITED),
    )


EDITED = (
    "edited by hand: the losses, size and stability in the file are of the plan before the edit, "
    "so they are left out."
)


def check_promises(plan: PrunePlan, *, path: object) -> None:
    """Check that the experts that stay are still those that the plan's own options promise.

    Raises:
        PlanError: an edit took away what ``keep_layers``, ``layer_keep``, ``must_keep``,
            ``multiple_of`` or the protected super-experts keep.
    """
    options = plan.options
    whole = options.get("keep_layers", [])
    own = options.get("layer_keep", {})
    multiple_of = options.get("multiple_of", 1)
    _check_type(path, "keep_layers", whole, list)
    _check_type(path, "layer_keep", own, dict)
    _check_type(path, "multiple_of", multiple_of, int)
    named = _named(path, "options.must_keep", options.get("must_keep", {}))
    super_experts = _named(path, "details.super_experts", plan.details.get("super_experts", {}))
    rows = rows_of(plan.layer_ids, plan.sets)
    for row, count, ids in zip(rows, plan.num_experts, plan.keep, strict=True):
        where, key = row_name(*row), row_name(*row).removeprefix("layer ")
        want = count if row[0] in whole else own.get(str(row[0]), len(ids))
        if len(ids) != want:
            option = "keep_layers" if row[0] in whole else "layer_keep"
            raise PlanError(
                f"{path}: {where} keeps {len(ids)} experts, options.{option} says {want}. "
                f"Undo the edit, or take the layer out of {option}."
            )
        if multiple_of > 1 and len(ids) % multiple_of and len(ids) != count:
            raise PlanError(
                f"{path}: {where} keeps {len(ids)} experts, options.multiple_of says a multiple "
                f"of {multiple_of}. Undo the edit, or change multiple_of."
            )
        for place, experts in (
            ("options.must_keep", named),
            ("details.super_experts", super_experts),
        ):
            gone = sorted(set(experts.get(key, [])) - set(ids))
            if gone:
                raise PlanError(
                    f"{path}: {where} loses expert {gone[0]}, which {place} protects. "
                    f"Put it back into 'keep', or take it out of {place}."
                )


def _named(path: object, name: str, value: Any) -> Mapping[str, Sequence[int]]:
    if isinstance(value, dict) and all(
        isinstance(ids, list) and all(type(expert) is int for expert in ids)
        for ids in value.values()
    ):
        return value
    raise PlanError(f"{path}: {name} is {value!r}; it should name the ids of each layer.")


def _check_type(path: object, name: str, value: Any, kind: type) -> None:
    if type(value) is not kind:
        raise PlanError(f"{path}: options.{name} is {value!r}, which 'moeprune plan' never writes.")
