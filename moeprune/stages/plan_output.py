"""Where a plan will lie, checked before it is made: a search may take hours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from moeprune.artefact import check_writable
from moeprune.core.plan import PrunePlan
from moeprune.errors import MoePruneError, UsageError
from moeprune.kinds import check_replaced


def check_outputs(
    paths: Sequence[Path], *, stats: object, options: Mapping[str, Any], folder: Path | None = None
) -> None:
    """Check that plans can be written, and that none takes the place of what is read.

    Args:
        paths: where the plans go.
        stats: the stats, or their file.
        options: of ``plan``; those that may name files are looked at.
        folder: the folder of the plans, where it does not exist yet.

    Raises:
        UsageError: a path is one of the inputs.
        OutputError: a path cannot be written.
    """
    read = [Path(item).resolve() for item in _inputs(options)]
    own = Path(stats).resolve() if isinstance(stats, str | Path) else None
    model = options.get("model")
    for path in paths:
        place = path.resolve()
        if place == own:
            raise UsageError(f"{path} is the stats file itself; name another file for the plan.")
        of_model = isinstance(model, str | Path) and Path(model).resolve() in place.parents
        if place in read or (of_model and path.exists() and not _is_plan(path)):
            raise UsageError(
                f"{path} is read here and would be lost; name another file for the plan."
            )
        check_replaced(path, own="a plan")
    for path in paths if folder is None else [folder]:
        check_writable(path)


def _is_plan(path: Path) -> bool:
    """Whether it is an earlier plan, which may be replaced."""
    try:
        PrunePlan.load(path)
    except MoePruneError:
        return False
    return True


def _inputs(options: Mapping[str, Any]) -> Iterable[str | Path]:
    must_keep = options.get("must_keep")
    if isinstance(must_keep, str | Path):
        yield must_keep
    text = options.get("search_text") or ()
    if isinstance(text, str):
        text = (text,)
    for entry in text.values() if isinstance(text, Mapping) else text:
        yield str(entry) if isinstance(text, Mapping) else str(entry).partition("=")[2].strip()
