"""What an exported folder says of itself: moeprune.json, read back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moeprune.artefact import check_schema, read_json
from moeprune.core.plan import PrunePlan
from moeprune.errors import CheckpointError
from moeprune.kinds import not_exported, wanted
from moeprune.stages.forms import FORMS, UNIFORM
from moeprune.stages.next_token import MODES

RECORD = "moeprune.json"
SCHEMA = "moeprune.export/1"


@dataclass(frozen=True, slots=True)
class Exported:
    """How a folder was exported.

    Attributes:
        plan: which experts stay.
        mtp: what became of the next-token layers, one of ``next_token.MODES``.
        form: how layers of different counts were written, one of ``forms.FORMS``.
    """

    plan: PrunePlan
    mtp: str
    form: str


def exported(out: Path) -> Exported:
    """Read how the folder ``out`` was exported.

    Raises:
        CheckpointError: it was not, or its record is malformed.
    """
    path = out / RECORD
    if not path.is_file():
        raise CheckpointError(not_exported(out))
    body = read_json(path, error=CheckpointError, what=wanted(SCHEMA))
    if not isinstance(body, dict) or not isinstance(body.get("plan"), dict):
        raise CheckpointError(f"{path} holds no plan; {out} was not written by 'moeprune export'.")
    check_schema(body, schema=SCHEMA, path=path, error=CheckpointError)
    layers = body.get("next_token_layers", {"mode": "prune"})  # older exports always cut them
    mode = layers.get("mode") if isinstance(layers, dict) else None
    if mode not in MODES:
        raise CheckpointError(
            f"{path}: next_token_layers.mode is {mode!r}, which this moeprune does not know. "
            "Export again, or update moeprune."
        )
    form = body.get("form", UNIFORM)  # older exports had no other
    if form not in FORMS:
        raise CheckpointError(
            f"{path}: form is {form!r}, which this moeprune does not know. Export again, or update "
            "moeprune."
        )
    plan = PrunePlan.from_json(body["plan"], path=path)
    if (form == UNIFORM) != (plan.uniform_count is not None):
        raise CheckpointError(
            f"{path}: form {form!r} does not go with a plan that keeps "
            f"{sorted({*map(len, plan.keep)})} experts a layer. Export again."
        )
    return Exported(plan=plan, mtp=mode, form=form)
