"""The model that is asked: a MoE, an export of any form, or a model without experts.

A plan needs the layout of the experts; questions need a model that transformers loads, no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from moeprune.artefact import read_json, sha256_bytes
from moeprune.checkpoint.index import CheckpointIndex, fingerprint
from moeprune.checkpoint.own_code import MODELING_FILE, has_own_counts, is_own_code, own_policy
from moeprune.checkpoint.sample import code_of, sample
from moeprune.core.layout import MoeLayout
from moeprune.core.plan import PrunePlan
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import CheckpointError, MoePruneError, UnsupportedModelError, UsageError
from moeprune.hub.resolve import resolve_model, source_name
from moeprune.stages.exported import RECORD, Exported, exported
from moeprune.stages.identify import OpenModel, check_unchanged, open_model
from moeprune.stages.in_memory import least_bytes
from moeprune.stages.numbers import check_numbers
from moeprune.stages.runnable import check_trusted
from moeprune.stages.stored import check_runnable

_HEAD_ROOM = 500_000_000
"""Bytes that a loaded model needs beside its weights, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedModel:
    """A checkpoint that can be asked, by its headers: nothing is loaded.

    Attributes:
        index: files and tensors.
        name: Hub id or folder name.
        fingerprint: of the checkpoint; of one without experts, with pieces of its weights.
        opened: the same with its experts; None where it has none, or layers of different counts.
        problem: why ``opened`` is None.
        export: how it was exported, where it was.
    """

    index: CheckpointIndex
    name: str
    fingerprint: str
    opened: OpenModel | None
    problem: MoePruneError | None
    export: Exported | None

    @property
    def layout(self) -> MoeLayout | None:
        """Where the experts lie."""
        return None if self.opened is None else self.opened.layout

    @property
    def routed(self) -> MoeLayout:
        """The same, of a model that plans can mask and policies reroute.

        Raises:
            UnsupportedModelError: why it has no experts, or none that are known.
            UsageError: its own code runs another k₁ and k₂.
        """
        if self.opened is None:
            assert self.problem is not None
            raise self.problem
        if self.policy is not None:
            raise UsageError(
                f"{self.name} was exported with --k1 {self.policy.k1} --k2 {self.policy.k2}, and "
                "is evaluated as it is. Evaluate plans, --k1 and --k2 on the model that it was "
                "made from."
            )
        return self.opened.layout

    @property
    def policy(self) -> RoutingPolicy | None:
        """k₁ and k₂ that its own code runs; None: those of its config.json."""
        return own_policy(self.index.config)

    @property
    def own_code(self) -> bool:
        """Whether its code is the file that ``export`` writes, byte for byte."""
        return is_own_code(self.index)

    @property
    def draws(self) -> bool:
        """Whether its own generation config draws tokens."""
        path = self.index.path / "generation_config.json"
        if not path.is_file():
            return False
        body = read_json(path, error=CheckpointError, what="the model's generation config")
        return isinstance(body, dict) and body.get("do_sample") is True

    def max_length(self, tokenizer: Any, *, trust_remote_code: bool) -> int:
        """Tokens that it reads at once.

        Raises:
            CheckpointError: its config cannot be read.
        """
        from moeprune.evaluate.encoding import max_length_of
        from moeprune.observe.load import load_config

        config = load_config(self.index.path, trust_remote_code=trust_remote_code)
        return max_length_of(SimpleNamespace(config=config), tokenizer)

    def identity(self) -> dict[str, str]:
        """What tells it from another one, by what it is called.

        Raises:
            CheckpointError: its files cannot be read.
        """
        return {
            "model": self.fingerprint,
            "config.json": sha256_bytes(self.index.config_text.encode("utf-8", "surrogatepass")),
            "content of the weights": sample(self.index),
            "code of the checkpoint": code_of(self.index),
        }

    def header(self) -> dict[str, Any]:
        """What ``run.json`` says of it."""
        body: dict[str, Any] = {"name": self.name, "fingerprint": self.fingerprint}
        body["model_type"] = self.index.config.get("model_type")
        if self.opened is not None:
            facts = self.opened.facts
            body |= {"layers": facts.num_layers, "experts": list(facts.num_experts)}
        elif self.export is not None and self.export.plan is not None:
            kept = [len(ids) for ids in self.export.plan.keep]
            body |= {"layers": len(kept), "experts": kept}
        return body

    def check_plan(self, plan: PrunePlan) -> None:
        """Check that a plan was made for this model.

        Raises:
            MismatchError: it was made for another one.
            UnsupportedModelError: the model has no experts that could be removed.
            UsageError: it is an export that runs another k₁ and k₂.
        """
        assert self.routed is not None and self.opened is not None
        plan.check_against(self.opened.facts)

    def check(self, *, trust_remote_code: bool) -> None:
        """Check that transformers can run it, and may.

        Raises:
            UsageError: it runs by code of its own, which was not allowed.
            UnsupportedModelError: transformers does not run the stored format.
        """
        from moeprune.observe.load import check_config

        if self.opened is not None:
            check_runnable(self.index, self.opened.layout)
            check_trusted(
                self.opened.layout, self.opened.origin, trust_remote_code=trust_remote_code
            )
        exported = has_own_counts(self.index.config) or self.policy is not None
        if exported and not (self.own_code or trust_remote_code):
            raise UsageError(
                f"{self.index.path} was exported with code of its own, and its {MODELING_FILE} is "
                "not the one that this moeprune writes. Read it, then give --trust-remote-code."
            )
        check_config(self.index.path, trust_remote_code=trust_remote_code)

    def load(self, *, dtype: str, device: str | None, trust_remote_code: bool) -> Any:
        """The model in memory.

        Raises:
            CheckpointError: it cannot be loaded whole, its files have changed, or its numbers are
                not what they hold.
            UsageError: it does not fit.
        """
        from moeprune.observe.load import load_causal_lm
        from moeprune.observe.placed import check_fetched

        live = load_causal_lm(
            self.index.path,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code or self.own_code,
        )
        if self.opened is not None:
            check_unchanged(self.opened)
            check_fetched(live, self.opened.layout)
            check_numbers(self.index, self.opened.layout, live)
        return live

    def check_fits(self, *, dtype: str, place: Any, processes: int) -> None:
        """Check that the weights fit the memory, by what their files hold.

        Args:
            dtype: as the user names it.
            place: the ``torch.device``; None: spread over all devices, and then nothing is known.
            processes: of this machine, each of which loads it.

        Raises:
            UsageError: they do not.
        """
        from moeprune.observe.streamed.memory import allowed_memory, device_memory
        from moeprune.observe.streamed.sizing import size

        if place is None:
            return
        room = device_memory(place) or allowed_memory() // processes
        needed = least_bytes(self.index, dtype) + _HEAD_ROOM
        if needed > room:
            raise UsageError(
                f"{self.name} takes {size(needed)} at least and there are {size(room)}: eval loads "
                "a model whole (only calibrate reads one a layer at a time). Export the plan and "
                "evaluate the smaller model, give --device auto for several devices, or a smaller "
                "--dtype."
            )


def open_asked(model: str | Path, *, revision: str | None = None) -> AskedModel:
    """Open a local folder or a Hub id.

    Raises:
        CheckpointError: it cannot be read.
        HubError: the Hub refused.
        UsageError: a revision of a local folder.
    """
    index = CheckpointIndex.open(resolve_model(model, revision=revision))
    record = exported(index.path) if (index.path / RECORD).is_file() else None
    opened: OpenModel | None = None
    problem: MoePruneError | None = None
    try:
        opened = open_model(model, revision=revision, rerouted=True)
        mark = opened.facts.fingerprint
    except UnsupportedModelError as reason:
        problem = reason
        mark = sha256_bytes(f"{fingerprint(index, ())} {sample(index)}".encode())
    return AskedModel(
        index=index,
        name=source_name(model),
        fingerprint=mark,
        opened=opened,
        problem=problem,
        export=record,
    )
