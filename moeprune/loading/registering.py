"""Tell transformers of the readers of this folder, once it is imported."""

from __future__ import annotations

import importlib
import importlib.util
import logging

_log = logging.getLogger(__name__)


def register_readers() -> None:
    """Register all readers; of a transformers that they do not know (4, which needs none), none."""
    if importlib.util.find_spec("transformers.core_model_loading") is None:
        return
    try:
        importlib.import_module("moeprune.loading.nf4").register_nf4()
    except ImportError as problem:
        _log.warning("this transformers cannot be taught to read 4-bit experts: %s", problem)
