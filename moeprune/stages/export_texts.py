"""The two files of an export that tell of it: moeprune.json and the model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moeprune.checkpoint.index import CONFIG_FILE
from moeprune.checkpoint.sidecars import sidecars_of
from moeprune.core.cost import Cost
from moeprune.core.plan import PrunePlan
from moeprune.hub.card import model_card, read_readme
from moeprune.stages.export_record import record_text
from moeprune.stages.exported import RECORD
from moeprune.stages.identify import OpenModel
from moeprune.stages.next_token import NextToken
from moeprune.stages.quantised import Quantised
from moeprune.stages.routed import Routed

CARD_FILE = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """All that the two files tell.

    Attributes:
        opened: the source.
        plan: which experts stay; None: all.
        form: how layers of different counts are written.
        routed: what the routers do.
        changes: path in config.json -> new value.
        next_token: what becomes of next-token layers.
        size: bytes of all tensors before and after.
        token: what a token activates and reads.
        warnings: one line each, for whoever exports.
        notes: those of them that whoever has the folder should know.
        quantised: how weights are stored; None: as in the source.
    """

    opened: OpenModel
    plan: PrunePlan | None
    form: str
    routed: Routed
    changes: Mapping[tuple[str, ...], Any]
    next_token: NextToken
    size: Mapping[str, Any]
    token: Cost
    warnings: Sequence[str]
    notes: Sequence[str]
    quantised: Quantised | None = None

    def texts(self) -> dict[str, str]:
        """File name -> text; the errors of quantised weights in it, once these are written.

        Until then, it is at least as long as it will be.
        """
        quantisation = None if self.quantised is None else self.quantised.to_json(reserve=True)
        opened, gain = self.opened, self.routed.gain
        current = self.plan.without_stale() if self.plan and self.plan.num_removed else None
        return {
            RECORD: record_text(
                opened=opened,
                plan=self.plan,
                form=self.form,
                policy=self.routed.policy,
                gain=gain,
                quantisation=quantisation,
                changes=self.changes,
                next_token=self.next_token,
                size=self.size,
                warnings=self.warnings,
                left_out=sidecars_of(opened.index, replaced=(CONFIG_FILE, RECORD, CARD_FILE)).left,
            ),
            CARD_FILE: model_card(
                current and replace(current, size=self.size),
                form=self.form,
                policy=self.routed.runs,
                gains=None if gain is None else gain.gains,
                facts=opened.facts,
                native=opened.layout.native_policy,
                token=self.token,
                quantisation=quantisation,
                notes=self.notes,
                source=opened.facts.name,
                source_readme=read_readme(opened.index.path),
            ),
        }
