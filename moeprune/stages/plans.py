"""plans: one plan for each of several ratios, from stats that are read once."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeprune.artefact import atomic_path, sha256_file
from moeprune.core.methods import EVOLVED, METHODS
from moeprune.core.plan import PrunePlan
from moeprune.core.stats import CalibrationStats
from moeprune.errors import OutputError, UsageError
from moeprune.stages.plan import plan
from moeprune.stages.plan_output import check_outputs
from moeprune.stages.search import search_file

PLACE = "{ratio}"


def plans(
    stats: str | Path | CalibrationStats,
    *,
    ratios: Sequence[float],
    output: str | Path | None = None,
    **options: Any,
) -> tuple[PrunePlan, ...]:
    """Choose which experts to remove, for every ratio.

    Args:
        stats: what calibration measured, or the file it wrote.
        ratios: shares of the routed experts to remove, each once.
        output: where to write: a name with ``{ratio}`` in it, or a folder, which is made if it does
            not exist, for ``plan-RATIO.json``; None = nowhere. All plans are made before the first
            is written, and all are written, or none.
        **options: as of :func:`moeprune.plan`, but for ``ratio``, ``keep``, ``max_bytes`` and
            ``quantize``.

    Returns:
        The plans, in the order of ``ratios``.

    Raises:
        UsageError: no ratio, one twice, or an ``output`` that cannot hold several plans; or see
            :func:`moeprune.plan`.
        StatsError: the stats cannot be read, or a domain holds no token.
        OutputError: the plans cannot be written.
    """
    if not ratios or len(set(ratios)) != len(ratios):
        raise UsageError(f"ratios {list(ratios)}: name at least one, each once.")
    for name in ("keep", "max_bytes", "quantize"):
        if options.get(name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} {options[name]} does not go with several ratios."
            )
    paths = () if output is None else paths_for(Path(output), ratios)
    if output is not None:
        new = len(paths) > 1 and PLACE not in str(output) and not Path(output).exists()
        check_outputs(paths, stats=stats, options=options, folder=Path(output) if new else None)
    sha256 = None
    if not isinstance(stats, CalibrationStats):
        source = Path(stats)
        stats = CalibrationStats.load(source)
        sha256 = sha256_file(source)
    # A search that is interrupted goes on from these; they lie beside the asked name.
    states = [_state(output, ratio) if _searches(options) else None for ratio in ratios]
    made = tuple(
        replace(plan(stats, ratio=ratio, **{**options, "state": state}), stats_sha256=sha256)
        for ratio, state in zip(ratios, states, strict=True)
    )
    if output is not None:
        _write(made, paths, folder=None if PLACE in str(output) else Path(output))
        for state in states:
            if state is not None:
                state.unlink(missing_ok=True)
    return made


def _searches(options: dict[str, Any]) -> bool:
    found = METHODS.get(options.get("method", ""))
    return found is not None and found.allocation == EVOLVED


def _state(output: str | Path | None, ratio: float) -> Path | None:
    if output is None:
        return None
    path = Path(output)
    if PLACE in str(output):
        (path,) = paths_for(path, [ratio])
        return search_file(path)
    return search_file(path.with_name(f"{path.name}-{ratio!r}"))


def paths_for(output: Path, ratios: Sequence[float]) -> tuple[Path, ...]:
    """Where the plan of every ratio goes; of no ratio: ``output`` itself.

    Raises:
        UsageError: one file cannot hold several plans, or ``{ratio}`` stands for nothing.
    """
    if PLACE in str(output):
        if not ratios:
            raise UsageError(f"-o {output}: {PLACE} stands for --ratio; give one, or leave it out.")
        return tuple(Path(str(output).replace(PLACE, repr(float(ratio)))) for ratio in ratios)
    if len(ratios) <= 1:
        return (output,)
    if output.suffix == ".json" or output.is_file():
        raise UsageError(
            f"-o {output} is one file, and there are {len(ratios)} ratios: put {PLACE} into its "
            f"name, as in plan-{PLACE}.json, or name a folder."
        )
    return tuple(output / f"plan-{float(ratio)!r}.json" for ratio in ratios)


def _write(made: Sequence[PrunePlan], paths: Sequence[Path], *, folder: Path | None) -> None:
    new = folder is not None and not folder.exists() and len(paths) > 1
    if new:
        assert folder is not None
        try:
            folder.mkdir()
        except OSError as error:
            raise OutputError(f"cannot make {folder}: {error.strerror or error}.") from error
    try:
        with contextlib.ExitStack() as files:
            for path, each in zip(paths, made, strict=True):
                files.enter_context(atomic_path(path)).write_bytes(each.to_bytes())
    except OutputError:
        if new and folder is not None:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
