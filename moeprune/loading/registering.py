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
    for module, register in (("nf4", "register_nf4"), ("layered", "register_layered")):
        try:
            getattr(importlib.import_module(f"moeprune.loading.{module}"), register)()
        except ImportError as problem:
            _log.warning("this transformers cannot be taught to read %s: %s", module, problem)
