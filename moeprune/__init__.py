"""moeprune: prune whole experts from Mixture-of-Experts language models.

Every command is one call: ``moeprune.calibrate``, ``plan``, ``plans``, ``export``, ``verify``,
``eval``, ``compare``, ``scan``, ``push``, ``inspect``, ``merge``, ``analyse``, ``tasks``, ``demo``.
They are imported on first use, so that ``import moeprune`` is cheap. ``QuantOptions`` is what
``export`` is told of quantisation beyond a scheme's name.

From then on, transformers reads experts that are stored in four bits (see ``moeprune.loading``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from moeprune.on_import import after_import

__version__ = "0.1.0"

_STAGES = (
    "analyse",
    "calibrate",
    "compare",
    "demo",
    "eval",
    "export",
    "inspect",
    "merge",
    "plan",
    "plans",
    "push",
    "scan",
    "tasks",
    "verify",
)
__all__ = ["QuantOptions", "__version__", *_STAGES]

if TYPE_CHECKING:
    from moeprune.core.quantisation import QuantOptions
    from moeprune.stages.analyse import analyse
    from moeprune.stages.calibrate import calibrate
    from moeprune.stages.compare import compare
    from moeprune.stages.demo import demo
    from moeprune.stages.eval import eval
    from moeprune.stages.export import export
    from moeprune.stages.inspect import inspect
    from moeprune.stages.merge import merge
    from moeprune.stages.plan import plan
    from moeprune.stages.plans import plans
    from moeprune.stages.push import push
    from moeprune.stages.scan import scan
    from moeprune.stages.tasks import tasks
    from moeprune.stages.verify import verify


def _register() -> None:
    importlib.import_module("moeprune.loading.registering").register_readers()


# When this module has run, all that the readers build on has; from_pretrained is in it.
after_import("transformers.modeling_utils", _register)


def __getattr__(name: str) -> Any:
    if name in _STAGES:
        return getattr(importlib.import_module(f"moeprune.stages.{name}"), name)
    if name == "QuantOptions":
        return importlib.import_module("moeprune.core.quantisation").QuantOptions
    raise AttributeError(f"module 'moeprune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
