"""verify: an exported folder is exactly its source without the removed experts."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.checkpoint.audit import audit
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.progress import OnProgress, Progress, ignore
from moeprune.errors import UsageError
from moeprune.stages.config_problems import config_problems
from moeprune.stages.exported import RECORD, exported
from moeprune.stages.folded import rounding_of
from moeprune.stages.forms import PADDED, has_code
from moeprune.stages.forward import compare_forward
from moeprune.stages.identify import open_model
from moeprune.stages.next_token import NextToken
from moeprune.stages.quantised_audit import QuantisedAudit
from moeprune.stages.runnable import check_trusted
from moeprune.stages.stored import check_runnable
from moeprune.stages.streaming import outlined

if TYPE_CHECKING:
    from moeprune.evaluate.logits import LogitDifference

TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verify found.

    Attributes:
        problems: one line each; empty means every check held.
        tensors: tensors of the export that are what they must be.
        dropped: tensors of the source that left with their expert, or with a next-token layer.
        bytes_compared: bytes compared with the source.
        logits: the logit comparison, None where it was not asked for.
        reference: what the logits were compared with.
        tolerance: what the logits were held to.
        multiplied: of ``tensors``, those that are the source's times a folded gain.
        computed: of ``tensors``, those that hold the source's numbers quantised.
    """

    problems: tuple[str, ...]
    tensors: int
    dropped: int
    bytes_compared: int
    logits: LogitDifference | None
    tolerance: float
    reference: str = "the source with the removed experts masked"
    multiplied: int = 0
    computed: int = 0

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """A JSON object of plain types."""
        body: dict[str, Any] = {
            "ok": self.ok,
            "problems": list(self.problems),
            "tensors": self.tensors,
            "multiplied": self.multiplied,
            "quantised": self.computed,
            "dropped": self.dropped,
            "bytes_compared": self.bytes_compared,
        }
        if self.logits is not None:
            body["logits"] = {
                "largest_difference": self.logits.largest,
                "largest_logit": self.logits.scale,
                "same_argmax": self.logits.same_argmax,
                "positions": self.logits.positions,
                "tolerance": self.tolerance,
                "rounding": self.logits.noise,
            }
        return body

    def to_text(self) -> str:
        """What a person reads."""
        times = f"{self.multiplied} equal to them times the gain, " if self.multiplied else ""
        if self.computed:
            times += f"{self.computed} quantised, every number within half a step of its own, "
        lines = [
            f"tensors: {self.tensors - self.multiplied - self.computed} equal to the source's, "
            f"{times}"
            f"{self.dropped} left with their expert",
            f"bytes: {self.bytes_compared:,} compared",
        ]
        if self.logits is not None:
            lines.append(
                f"logits: largest difference {self.logits.largest:.2e} (allowed "
                f"{self.logits.allowed(self.tolerance):.2e}) from {self.reference}, at "
                f"{self.logits.positions} positions{_rounding(self.logits)}"
            )
        lines += [f"FAILED: {problem}" for problem in self.problems[:20]]
        if len(self.problems) > 20:
            lines.append(f"… and {len(self.problems) - 20} more problems")
        lines.append("verified" if self.ok else "not verified")
        return "\n".join(lines)


def verify(
    out: str | Path,
    *,
    source: str | Path,
    forward: bool = False,
    tolerance: float | None = None,
    dtype: str = "float32",
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    on_progress: OnProgress = ignore,
) -> VerifyReport:
    """Check the exported folder ``out`` against the checkpoint it came from.

    Structure: every tensor of the source is kept, sliced or dropped as the plan inside ``out``
    says, kept rows are byte-identical, padding is zero, shapes match ``out``'s own config, and
    config.json differs in the expert counts and in what the export adds only.

    Args:
        out: a folder that ``export`` wrote.
        source: folder or Hub id of the model it was exported from. Of a Hub id, headers and those
            weight files come that something is compared with, one by one, and go again; with
            ``forward`` the whole model comes to the Hub's cache.
        forward: also load both models and compare the logits of a few prompts: the export's
            against the source's with the removed experts masked to −inf and k₁ and k₂ applied.
            Code in the folder is run where it is, byte for byte, what this moeprune writes.
        tolerance: largest logit difference that passes, relative where logits exceed 1. None: 1e-5,
            or five times what rounding in the experts alone does to this model's logits, where that
            is more; never above 1e-3. Of a folded gain in a 16-bit type: half a unit in the last
            place of that.
        dtype: to load the models in for ``forward``.
        device: to run them on.
        revision: of a Hub source.
        trust_remote_code: run code that comes with the source checkpoint.
        on_progress: told of bytes compared, and of those downloaded.

    Returns:
        The report; a failed check is in ``report.problems``, not raised.

    Raises:
        CheckpointError: a folder cannot be read at all, or ``out`` was not made by export.
        MismatchError: ``out`` was exported from another model.
        HubError: the Hub refused, or a file of the source changed there meanwhile.
        OutputError: the disk of ``out`` has no room for a weight file of the source.
        UnsupportedModelError: ``forward``, and transformers does not run the stored format on the
            numbers that it means.
    """
    allowed = TOLERANCE if tolerance is None else tolerance
    if not allowed >= 0:  # also refuses NaN
        raise UsageError(f"--tolerance {tolerance} is not a number from 0 up.")
    out = Path(out).expanduser()
    made = exported(out)  # before anything is asked of the Hub
    out_index = CheckpointIndex.open(out)
    # A model that is run must be here whole: in the Hub's cache.
    with nullcontext() if forward else outlined(source, revision=revision, beside=out) as remote:
        opened = open_model(source, revision=revision, source=remote)
        source_index, layout = opened.index, opened.layout
        if out_index.path.resolve() == source_index.path.resolve():
            raise UsageError(
                f"{out} and its --source are the same folder; name the pruned one first."
            )
        made.check_source(opened.facts)
        next_token = NextToken.of(source_index, layout, mode=made.mtp)
        if forward:
            if not made.requantised:
                check_runnable(source_index, layout)
            check_trusted(layout, opened.origin, trust_remote_code=trust_remote_code)
        staying = replace(source_index, entries=next_token.staying(source_index.entries))
        factors: dict[str, float] = {}
        if made.gain is not None:
            made.gain.check_layers(layout, path=out / RECORD)
            factors = made.gain.factors(source_index, layout, staying.tensors)
        if tolerance is None:
            allowed = max(allowed, rounding_of(factors, source_index.tensors))
        quantised = QuantisedAudit.of(made, staying, out_index, layout=layout, factors=factors)
        found = audit(
            staying,
            out_index,
            layout=next_token.layout,
            keep=made.keep(layout),
            padded=made.form == PADDED,
            factors=factors,
            computed=quantised.computed if quantised else None,
            passing=remote,
            on_progress=on_progress,
        )
        found.dropped += len(source_index.entries) - len(staying.entries)
        code = quantised.code() if quantised else ()
        problems = [
            *found.problems,
            *config_problems(source_index, out_index, next_token, made, code),
        ]
        problems += quantised.problems() if quantised else ()
        logits = None
        if forward and not problems:
            on_progress(Progress("verify logits", 0, 0, "prompts"))
            logits = compare_forward(
                source_index,
                out_index.path,
                layout=layout,
                plan=made.plan,
                policy=made.live_policy(layout),
                dtype=dtype,
                device=device,
                trust_remote_code=trust_remote_code,
                own_code=has_code(made.form, made.policy, code),  # ours: else there is a problem
                rounding=tolerance is None,
                other=quantised.reference() if quantised else None,
            )
            if not logits.within(allowed):
                problems.append(
                    f"logits differ by {logits.largest:.3g} from {made.reference} (largest "
                    f"logit {logits.scale:.3g}, tolerance {allowed:g}{_rounding(logits)})"
                )
    return VerifyReport(
        problems=tuple(problems),
        tensors=found.tensors,
        multiplied=found.multiplied,
        computed=found.computed,
        dropped=found.dropped,
        bytes_compared=found.bytes_compared,
        logits=logits,
        tolerance=allowed,
        reference=made.reference,
    )


def _rounding(logits: LogitDifference) -> str:
    return f"; rounding alone moves them by {logits.noise:.2g}" if logits.noise else ""
