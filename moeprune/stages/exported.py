"""What an exported folder says of itself: moeprune.json, read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.artefact import check_schema, read_json
from moeprune.core.facts import ModelFacts
from moeprune.core.layout import MoeLayout
from moeprune.core.plan import PrunePlan
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import CheckpointError, MismatchError
from moeprune.kinds import not_exported, wanted
from moeprune.stages.folded import FoldedGain
from moeprune.stages.forms import FORMS, UNIFORM
from moeprune.stages.next_token import MODES

RECORD = "moeprune.json"
SCHEMA = "moeprune.export/1"


@dataclass(frozen=True, slots=True)
class Exported:
    """How a folder was exported.

    Attributes:
        plan: which experts stay; None: all.
        mtp: what became of the next-token layers, one of ``next_token.MODES``.
        form: how layers of different counts were written, one of ``forms.FORMS``.
        policy: k₁ and k₂ of its routers; None: the source's own.
        gain: what stands for k₁ and k₂ in its config.json and weights; None: nothing.
        quantisation: how its weights are stored, as the record has it; None: as in the source.
        source: name and fingerprint of the model it was made from, or ``""``: not stated.
    """

    plan: PrunePlan | None
    mtp: str
    form: str
    policy: RoutingPolicy | None = None
    source: tuple[str, str] = ("", "")
    gain: FoldedGain | None = None
    quantisation: Mapping[str, Any] | None = None

    @property
    def requantised(self) -> bool:
        """Whether a quantised source was turned into numbers first."""
        options = (self.quantisation or {}).get("options")
        return isinstance(options, dict) and options.get("requantize") is True

    def live_policy(self, layout: MoeLayout) -> RoutingPolicy | None:
        """What live routers of the source do that compute the same; None: what they do anyway."""
        return self.policy if self.gain is None else self.gain.policy(layout)

    def keep(self, layout: MoeLayout) -> tuple[tuple[int, ...], ...]:
        """(L,) the ids that stay, of the source with this layout."""
        return kept(self.plan, layout)

    @property
    def reference(self) -> str:
        """What it should compute, in words."""
        removed = self.plan is not None and self.plan.num_removed > 0
        changed = ["with the removed experts masked"] if removed else []
        if self.policy is not None:
            changed.append(f"with k1 = {self.policy.k1} and k2 = {self.policy.k2} applied")
        if self.gain is not None:
            changed.append(f"with k1 = {self.gain.k1} and each layer's gain applied")
        if self.quantisation is not None:
            changed.insert(0, "with its numbers as the export stores them")
        return f"the source {' and '.join(changed)}".rstrip()

    def check_source(self, facts: ModelFacts) -> None:
        """Check that it was made from this model.

        Raises:
            MismatchError: it was made from another one.
        """
        name, fingerprint = self.source
        if self.plan is not None:
            self.plan.check_against(facts)
        elif fingerprint != facts.fingerprint:
            raise MismatchError(
                f"the export was made from {name or 'another model'} (fingerprint "
                f"{fingerprint[:12]}), not from {facts.name} ({facts.fingerprint[:12]}). Name the "
                "model that it was made from."
            )


def exported(out: Path) -> Exported:
    """Read how the folder ``out`` was exported.

    Raises:
        CheckpointError: it was not, or its record is malformed.
    """
    path = out / RECORD
    if not path.is_file():
        raise CheckpointError(not_exported(out))
    body = read_json(path, error=CheckpointError, what=wanted(SCHEMA))
    stated = body if isinstance(body, dict) else {}
    policy = _policy(stated.get("policy"), path)
    gain = stated.get("folded_gain")
    gain = None if gain is None else FoldedGain.from_json(gain, path=path)
    quantisation = stated.get("quantisation")
    changed = policy is not None or gain is not None or isinstance(quantisation, dict)
    plan_body = stated.get("plan", False)
    if not isinstance(plan_body, dict) and (not changed or plan_body is not None):
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
    plan = None if plan_body is None else PrunePlan.from_json(plan_body, path=path)
    if (form == UNIFORM) != (plan is None or plan.uniform_count is not None):
        counts = sorted({*map(len, plan.keep)}) if plan else "all"
        raise CheckpointError(
            f"{path}: form {form!r} does not go with a plan that keeps {counts} experts a layer. "
            "Export again."
        )
    source = body.get("source")
    found = source if isinstance(source, dict) else {}
    names = str(found.get("name", "")), str(found.get("fingerprint", ""))
    return Exported(
        plan=plan,
        mtp=mode,
        form=form,
        policy=policy,
        source=names,
        gain=gain,
        quantisation=quantisation if isinstance(quantisation, dict) else None,
    )


def folded_into(folder: Path) -> FoldedGain | None:
    """What stands for k₁ and k₂ in a folder that may be no export; None: nothing does.

    Raises:
        CheckpointError: its record is malformed.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    body = read_json(path, error=CheckpointError, what=wanted(SCHEMA))
    ours = isinstance(body, dict) and body.get("schema") == SCHEMA
    gain = body.get("folded_gain") if ours else None
    return None if gain is None else FoldedGain.from_json(gain, path=path)


def kept(plan: PrunePlan | None, layout: MoeLayout) -> tuple[tuple[int, ...], ...]:
    """(L,) the ids that stay; without a plan, all."""
    if plan is not None:
        return plan.keep
    return tuple(tuple(range(count)) for count in layout.num_experts)


def _policy(body: object, path: Path) -> RoutingPolicy | None:
    if body is None:
        return None
    known = isinstance(body, dict) and set(body) == {"k1", "k2"}
    if not isinstance(body, dict) or not known or not all(map(_is_rank, body.values())):
        raise CheckpointError(
            f"{path}: policy is {body!r}, which this moeprune does not know. Export again, or "
            "update moeprune."
        )
    return RoutingPolicy(k1=body["k1"], k2=body["k2"])


def _is_rank(value: object) -> bool:
    return type(value) is int and value > 0
