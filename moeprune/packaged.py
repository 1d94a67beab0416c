"""Where the data that ships with moeprune lies."""

from __future__ import annotations

from pathlib import Path

from moeprune.errors import UsageError


def calibration_folder() -> Path:
    """The folder ``calibration/``: inside an installed package, or beside it in a clone.

    Raises:
        UsageError: the installation lacks it.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "_calibration", package.parent / "calibration"):
        if (folder / "domains.json").is_file():
            return folder
    raise UsageError(
        f"this installation of moeprune in {package} lacks its calibration data; install it again."
    )
