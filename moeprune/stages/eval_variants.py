"""The variants of one evaluation: the model as it is, and what plans leave of it.

A variant is entered as one context: inside the block the one loaded model computes what it would.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.artefact import check_schema, sha256_bytes
from moeprune.core.plan import PrunePlan
from moeprune.errors import UsageError
from moeprune.kinds import kind_of
from moeprune.plugins import known
from moeprune.stages.eval_model import AskedModel

SCHEMA = "moeprune.variants/1"
_KEYS = ("name", "plan")
_HOW = "Write a [[variant]] table with name = '…' for each, and plan = 'plan.json' where it has one"
_LONGEST = 200  # bytes: more than a folder's name may have, with what is put to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What is asked the same questions as the others.

    Attributes:
        name: of its run, and of its folder where there are several.
        plan: which experts stay; None: the model as it is.
    """

    name: str
    plan: PrunePlan | None = None

    def header(self, asked: AskedModel) -> dict[str, Any]:
        """What ``run.json`` says was done to the model, by this plan or by an export."""
        plan, exported = self.plan, asked.export
        body: dict[str, Any] = {}
        if plan is None and exported is not None:
            plan = exported.plan
            body["exported"] = exported.form
        if plan is None:
            return body
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
        return body

    def request(self) -> list[Any]:
        """What decides its answers, apart from the model."""
        return [self.name, None if self.plan is None else sha256_bytes(self.plan.to_bytes())]


@contextmanager
def applied(variant: Variant, live: Any, asked: AskedModel) -> Iterator[None]:
    """Within the block, the model is the variant.

    Raises:
        VerificationError: at the end of the block, if a router ran and was not masked.
    """
    if variant.plan is None:
        yield
        return
    from moeprune.observe.layers import moe_layers
    from moeprune.routing.mask import masked_experts

    layout = asked.layout
    assert layout is not None, "the plan was checked"
    layers = moe_layers(live, layout)
    with masked_experts(
        live,
        routers=[layer.router for layer in layers],
        num_experts=[layer.num_experts for layer in layers],
        removed=[variant.plan.removed[layer.row] for layer in layers],
        extra=layout.extra_rows,
    ):
        yield


def variants_of(
    asked: AskedModel,
    *,
    plan: str | Path | PrunePlan | None,
    variants: str | Path | Mapping[str, str | Path | PrunePlan | None] | None,
    name: str | None,
) -> tuple[Variant, ...]:
    """What is to be asked, checked against the model.

    Args:
        asked: the model.
        plan: of the one variant.
        variants: several: a TOML file, or name -> plan (None: the model as it is).
        name: of the one variant; None: called after the plan's file, or the model.

    Raises:
        UsageError: both are given, or the file names no variants.
        PlanError: a plan is malformed.
        MismatchError: a plan is of another model.
    """
    if variants is None:
        called = name or (Path(plan).stem if isinstance(plan, str | Path) else asked.name)
        found: tuple[Variant, ...] = (Variant(name=called, plan=_plan(plan)),)
    else:
        if plan is not None or name is not None:
            option = "--name" if plan is None else "--plan"
            raise UsageError(
                f"--variants names all that is evaluated, and {option} one more. Add it to the "
                "file, or leave --variants out."
            )
        found = read_variants(variants) if isinstance(variants, str | Path) else _named(variants)
    for variant in found:
        if variant.plan is not None:
            asked.check_plan(variant.plan)
    return found


def read_variants(path: str | Path) -> tuple[Variant, ...]:
    """Read a TOML file of ``[[variant]]`` tables; plans lie beside it, where a path is relative.

    Raises:
        UsageError: it is none.
        PlanError: a plan is malformed.
    """
    path = Path(path)
    body = _parsed(path)
    if "schema" in body:
        check_schema(body, schema=SCHEMA, path=path, error=UsageError)
    for key in body:
        known(key, ("schema", "variant"), kind=f"key of {path}")
    entries = body.get("variant")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        kind = kind_of(path) or "a file"
        raise UsageError(f"{path} is {kind} that lists no variants. {_HOW}.")
    plans: dict[str, str | Path | None] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"{path}, variant {number}"
        for key, value in entry.items():
            known(key, _KEYS, kind=f"key of {where}")
            if not isinstance(value, str) or not value:
                raise UsageError(f"{where}: {key} = {value!r} is not a text.")
        if "name" not in entry:
            raise UsageError(f"{where} has no name. {_HOW}.")
        if entry["name"] in plans:
            raise UsageError(f"{path} names two variants {entry['name']!r}. Give each its own.")
        plans[entry["name"]] = path.parent / entry["plan"] if "plan" in entry else None
    return _named(plans)


def _named(plans: Mapping[str, str | Path | PrunePlan | None]) -> tuple[Variant, ...]:
    _check_names(list(plans))
    return tuple(Variant(name=name, plan=_plan(plan)) for name, plan in plans.items())


def _plan(plan: str | Path | PrunePlan | None) -> PrunePlan | None:
    return PrunePlan.load(Path(plan)) if isinstance(plan, str | Path) else plan


def _check_names(names: Sequence[str]) -> None:
    """Each is the name of a folder, on every file system, and tells it from the others."""
    if not names:
        raise UsageError(f"there is no variant to evaluate. {_HOW}.")
    seen: dict[str, str] = {}
    for name in names:
        bad = name != name.strip() or name in (".", "..") or set(name) & set('/\\:*?"<>|')
        if bad or not name.isprintable() or len(name.encode("utf-8", "replace")) > _LONGEST:
            raise UsageError(
                f"variant {name[:80]!r} cannot be the name of a folder. Call it otherwise, "
                "without / and the like."
            )
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise UsageError(
                f"variants {other!r} and {name!r} differ in case alone, and would be one folder "
                "on some systems. Call one of them otherwise."
            )


def _parsed(path: Path) -> dict[str, Any]:
    way_out = f"It should name variants. {_HOW}."
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. {way_out}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is {kind_of(path) or 'not UTF-8 text'}. {way_out}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        said, kind = str(problem).partition("\n")[0], kind_of(path) or "a file"
        raise UsageError(f"{path} is {kind}, not TOML ({said}). {way_out}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is {kind_of(path) or 'a folder'}. {way_out}") from None
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL
        reason = getattr(problem, "strerror", None) or problem
        raise UsageError(f"{path} cannot be read: {reason}.") from None
