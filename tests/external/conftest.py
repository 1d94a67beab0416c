"""The figures, printed after the run."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line a loader and checkpoint: the largest difference from transformers."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for key, value in getattr(report, "user_properties", ()):
                if key == "figure":
                    terminalreporter.write_line(f"{outcome}: {value}")
