"""Every error a user can meet: one tree, one line each, an exit code the command line returns.

A message names the thing, the value and the way out. Library code raises; only the command line
prints. Code that finds its own mistake uses ``assert``.
"""


class MoePruneError(Exception):
    """Base of all errors with a message meant for the user; ``exit_code`` 2 is wrong input."""

    exit_code = 2


class UsageError(MoePruneError):
    """An option or argument does not fit: unknown name, impossible combination."""


class CheckpointError(MoePruneError):
    """A checkpoint cannot be read: missing, truncated or contradictory files."""


class UnsupportedModelError(MoePruneError):
    """The checkpoint is sound, but not a Mixture-of-Experts that moeprune can prune."""


class UnknownFamilyError(UnsupportedModelError):
    """The model's family has no file in ``architectures/families``."""


class DomainError(MoePruneError):
    """Calibration text cannot be used: empty, unreadable, or a line that is not a document."""


class StatsError(MoePruneError):
    """A stats file is malformed, or its counts do not add up."""


class PlanError(MoePruneError):
    """A plan is malformed or leaves a model that cannot run."""


class RunError(MoePruneError):
    """A run folder, or the answers in it, are malformed or missing."""


class MismatchError(MoePruneError):
    """Two artefacts do not belong together (stats, plan, checkpoint of different models)."""


class OutputError(MoePruneError):
    """The output cannot be written: it exists, lies inside the source, or the disk is full."""


class HubError(MoePruneError):
    """The Hugging Face Hub refused, or could not be reached."""


class VerificationError(MoePruneError):
    """A check ran and failed; exit code 1 tells it from wrong input."""

    exit_code = 1


class StoppedError(MoePruneError):
    """A long job was asked to stop and did; the exit code is that of a program ended by Ctrl-C."""

    exit_code = 130


class ElsewhereError(MoePruneError):
    """Another process of the same launch has failed; it says why, and nobody says it again."""

    def __init__(self) -> None:
        super().__init__("another process of this launch has failed.")
