"""The variants of one evaluation: the model as it is, what plans leave of it, how it routes.

A variant is entered as one context: inside the block the one loaded model computes what it would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeprune.artefact import sha256_bytes
from moeprune.core.plan import PrunePlan
from moeprune.core.policy import RoutingPolicy
from moeprune.core.policy_checks import check_policy
from moeprune.core.policy_words import PolicyWords
from moeprune.errors import MismatchError, UsageError
from moeprune.stages.eval_model import AskedModel
from moeprune.stages.policies import changed
from moeprune.stages.variant_files import check_names, checked, variant_tables

Plan = str | Path | PrunePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What is asked the same questions as the others.

    Attributes:
        name: of its run, and of its folder where there are several.
        plan: which experts stay; None: all.
        policy: how many run, and with what weights; None: as the model does.
    """

    name: str
    plan: PrunePlan | None = None
    policy: RoutingPolicy | None = None

    def header(self, asked: AskedModel) -> dict[str, Any]:
        """What ``run.json`` says was done to the model: by this plan or by an export, by policy."""
        plan, exported = self.plan, asked.export
        body: dict[str, Any] = {}
        if plan is None and exported is not None:
            plan = exported.plan
            body["exported"] = exported.form
        if exported is not None and exported.quantisation is not None:
            body["quantised"] = exported.quantisation.get("scheme")
        if exported is not None and exported.gain is not None:
            body["folded_gain"] = {"k1": exported.gain.k1, "k2": exported.gain.k2}
        if plan is not None:
            told = plan.without_stale()
            body["plan"] = {
                "sha256": sha256_bytes(plan.to_bytes()),
                "method": told.method,
                "criterion": told.criterion,
                "allocation": told.allocation,
                "ratio": told.ratio,
                "removed": told.num_removed,
                "experts": [len(ids) for ids in told.keep],
                "worst_domain": told.worst_domain,
                "worst_domain_loss": told.worst_domain_loss,
            }
        policy = self.policy or asked.policy
        if policy is not None:
            body["policy"] = policy.to_json()
        return body

    def request(self) -> list[Any]:
        """What decides its answers, apart from the model."""
        plan = None if self.plan is None else sha256_bytes(self.plan.to_bytes())
        return [self.name, plan, *([] if self.policy is None else [self.policy.to_json()])]

    def check(self, asked: AskedModel) -> None:
        """Check it against the model.

        Raises:
            UsageError: no router of the model can take the policy, or the plan needs an export.
            MismatchError: the plan is of another model.
            UnsupportedModelError: the model has no experts, or routes in another way.
        """
        if self.plan is not None:
            asked.check_plan(self.plan)
            if self.plan.quantize is not None:
                raise UsageError(
                    f"{self.name}: the plan also says how experts are stored, which a mask in "
                    "memory does not do. Export it, and evaluate the export."
                )
        if self.policy is not None:
            keep = None if self.plan is None else self.plan.keep
            check_policy(self.policy, asked.routed, keep=keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A variant as a user states it.

    Attributes:
        name: of it.
        plan: which experts stay.
        words: of the policy.
        policy: the same, where it is one already.
    """

    name: str
    plan: PrunePlan | None = None
    words: PolicyWords = field(default_factory=PolicyWords)
    policy: RoutingPolicy | None = None

    def variant(self, asked: AskedModel) -> Variant:
        """What it is of this model, checked."""
        policy = self.policy
        if self.words.given:
            layout = asked.routed
            native = layout.native_policy
            policy = self.words.policy(native=native, experts=max(layout.num_experts))
        found = Variant(name=self.name, plan=self.plan, policy=policy)
        found.check(asked)
        return found


What = Plan | RoutingPolicy | Variant | Mapping[str, Any] | None
"""A plan, a policy, both as a variant or as the keys of its table; None: the model as it is."""


@contextmanager
def applied(variant: Variant, live: Any, asked: AskedModel) -> Iterator[None]:
    """Within the block, the model is the variant.

    Raises:
        VerificationError: at the end of the block, if a router ran and was not masked.
    """
    if variant.plan is None and variant.policy is None:  # of any model, one without experts too
        yield
        return
    with changed(live, asked.routed, variant.plan, variant.policy):
        yield


def variants_of(
    asked: AskedModel,
    *,
    plan: Plan | None,
    words: PolicyWords,
    variants: str | Path | Mapping[str, What] | None,
    name: str | None,
) -> tuple[Variant, ...]:
    """What is to be asked, checked against the model.

    Args:
        asked: the model.
        plan: of the one variant.
        words: of its policy.
        variants: several: a TOML file, or name -> what it is.
        name: of the one variant; None: called after the plan's file, or the model, and its policy.

    Raises:
        UsageError: both are given, or the file names no variants, or no router takes a policy.
        PlanError: a plan is malformed.
        MismatchError: a plan is of another model.
    """
    if variants is None:
        one = Stated(name=name or "", plan=_plan(plan), words=words).variant(asked)
        called = Path(plan).stem if isinstance(plan, str | Path) else asked.name
        if one.policy is not None:
            called = f"{called} {one.policy.label}"
        return (Variant(name=name or called, plan=one.plan, policy=one.policy),)
    if plan is not None or name is not None or words.given:
        option = "--name" if name is not None else "--k1, --k2 or --gain"
        option = option if plan is None else "--plan"
        raise UsageError(
            f"--variants names all that is evaluated, and {option} one more. Add it to the "
            "file, or leave --variants out."
        )
    found = read_variants(variants) if isinstance(variants, str | Path) else _named(variants)
    return tuple(_of_several(stated, asked) for stated in found)


def _of_several(stated: Stated, asked: AskedModel) -> Variant:
    """As :meth:`Stated.variant`; what does not fit says which of them it is."""
    try:
        return stated.variant(asked)
    except (UsageError, MismatchError) as error:
        raise type(error)(f"variant {stated.name!r}: {error}") from None


def read_variants(path: str | Path) -> tuple[Stated, ...]:
    """Read a TOML file of ``[[variant]]`` tables; plans lie beside it, where a path is relative.

    Raises:
        UsageError: it is none.
        PlanError: a plan is malformed.
    """
    return _named(variant_tables(Path(path)))


def _named(variants: Mapping[str, What]) -> tuple[Stated, ...]:
    check_names(list(variants))
    return tuple(_stated(name, what) for name, what in variants.items())


def _stated(name: str, what: What) -> Stated:
    if isinstance(what, Variant):
        return Stated(name=name, plan=what.plan, policy=what.policy)
    if isinstance(what, RoutingPolicy):
        return Stated(name=name, policy=what)
    if not isinstance(what, Mapping):
        return Stated(name=name, plan=_plan(what))
    if isinstance(what.get("plan"), Path | PrunePlan):
        said = {**checked({**what, "plan": "of"}, where=f"variant {name!r}"), "plan": what["plan"]}
    else:
        said = checked(dict(what), where=f"variant {name!r}")
    said.pop("name", None)
    return Stated(name=name, plan=_plan(said.pop("plan", None)), words=PolicyWords(**said))


def _plan(plan: Plan | None) -> PrunePlan | None:
    return PrunePlan.load(Path(plan)) if isinstance(plan, str | Path) else plan
