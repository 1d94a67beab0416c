"""export: write a checkpoint without the experts that a plan removes. Never loads the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import moeprune
from moeprune.checkpoint.config import edit_json_text
from moeprune.checkpoint.edits import TensorEdit, edits_for
from moeprune.checkpoint.index import CONFIG_FILE
from moeprune.checkpoint.sidecars import sidecars_of
from moeprune.checkpoint.staging import check_output
from moeprune.checkpoint.writer import write_checkpoint
from moeprune.core.plan import PrunePlan
from moeprune.core.progress import OnProgress, ignore
from moeprune.errors import PlanError
from moeprune.hub.card import model_card, read_readme
from moeprune.stages.identify import OpenModel, open_model
from moeprune.stages.stored import settings_texts

SCHEMA = "moeprune.export/1"
PROVENANCE_FILE = "moeprune.json"
CARD_FILE = "README.md"


def export(
    model: str | Path,
    *,
    plan: str | Path | PrunePlan,
    output: str | Path,
    revision: str | None = None,
    on_progress: OnProgress = ignore,
) -> Path:
    """Write ``model`` without the experts that ``plan`` removes, as a checkpoint of its own.

    Headers and plan make the whole list of edits, which is checked before a byte is written. Kept
    experts and router rows are byte-identical to the source. The folder appears under its name
    only when it is complete.

    Args:
        model: folder or Hub id.
        plan: a plan or its file; every layer must keep the same number of experts.
        output: the folder to make.
        revision: of a Hub model.
        on_progress: told of the bytes written.

    Returns:
        ``output``.

    Raises:
        CheckpointError: the model's files cannot be read.
        UnsupportedModelError: it is no MoE that moeprune can prune.
        MismatchError: the plan was made for another model.
        PlanError: the plan is malformed, or its layers keep different numbers of experts.
        OutputError: ``output`` exists, lies in the model, or the disk is full.
    """
    output = Path(output).expanduser()
    if not isinstance(plan, PrunePlan):
        plan = PrunePlan.load(Path(plan))
    opened = open_model(model, revision=revision)
    index, layout = opened.index, opened.layout
    plan.check_against(opened.facts)
    count = plan.uniform_count
    if count is None:
        counts = [len(ids) for ids in plan.keep]
        raise PlanError(
            f"the plan keeps {min(counts)} to {max(counts)} experts a layer; this version exports "
            "the same number in every layer. Plan with --allocation uniform."
        )
    check_output(output, source=index.path)
    edits = edits_for(index.tensors, layout, dict(enumerate(plan.keep)))
    config_text = edit_json_text(index.config_text, dict.fromkeys(layout.count_keys, count))
    texts = settings_texts(index, layout, plan.keep, config_text=config_text)
    provenance = _provenance(opened, plan, edits)
    texts |= {
        PROVENANCE_FILE: json.dumps(provenance, indent=1) + "\n",
        CARD_FILE: model_card(
            plan, source=opened.facts.name, source_readme=read_readme(index.path)
        ),
    }
    return write_checkpoint(index, edits, output, texts=texts, on_progress=on_progress)


def _provenance(opened: OpenModel, plan: PrunePlan, edits: list[TensorEdit]) -> dict[str, Any]:
    """The body of moeprune.json: how this checkpoint came about, without time or place."""
    own = (CONFIG_FILE, PROVENANCE_FILE, CARD_FILE)
    return {
        "schema": SCHEMA,
        "moeprune": moeprune.__version__,
        "source": {"name": opened.facts.name, "fingerprint": opened.facts.fingerprint},
        "changed_config_keys": [".".join(path) for path in opened.layout.count_keys],
        "size": {
            "bytes_before": opened.index.total_bytes,
            "bytes_after": sum(edit.info.nbytes for edit in edits),
        },
        "left_out": list(sidecars_of(opened.index, replaced=own).left),
        "plan": plan.to_json(),
    }
