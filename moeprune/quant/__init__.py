"""Stored formats: what a quantiser keeps beside a weight, and where its settings name modules.

A file of this folder is one format. It defines

``METHODS``         the ``quant_method`` values of config.json that mean this format
``PLACES``          key paths, from the quantisation settings inwards, of every list of module
                    names and every object whose keys are module names; ``*`` is any key
``requires``        ``requires(name, info)``: for a stored tensor, the companions without which
                    its bytes mean nothing; one name of each group must be there
``not_loaded``      ``not_loaded(settings, tensors, experts)``: why transformers does not turn these
                    experts back into the right numbers, or None where it does
``SCALES``          what, multiplied by a factor, multiplies a weight: the first of these that
                    stands beside it, by what follows the weight's name
"""

from moeprune.quant._encoding import Numbers, difference, encoded, one_thread, scheme
from moeprune.quant._floats import to_dtype, weight_values
from moeprune.quant._format import (
    StoredFormat,
    check_companions,
    check_loadable,
    not_loadable,
    stored_format,
)
from moeprune.quant._grid import grid_of, loaded_values, stored_names
from moeprune.quant._layered import layered_settings
from moeprune.quant._maps import stored_maps
from moeprune.quant._names import ExpertNames, Renaming, expert_of
from moeprune.quant._numbers import Raw, plain_weight
from moeprune.quant._plain import plain_bytes, plain_tensor
from moeprune.quant._plain_shape import plain_shape
from moeprune.quant._reading import tensor_of
from moeprune.quant._scales import multipliers
from moeprune.quant._settings import (
    SETTINGS_FILES,
    check_renumberable,
    in_place,
    places_in_config,
    places_in_file,
    settings_differences,
    settings_paths,
)
from moeprune.quant._stated import stated_problems
from moeprune.quant._steps import Judged, judged
from moeprune.quant._values import values_of
from moeprune.quant._written import Written

__all__ = [
    "SETTINGS_FILES",
    "ExpertNames",
    "Judged",
    "Numbers",
    "Raw",
    "Renaming",
    "StoredFormat",
    "Written",
    "check_companions",
    "check_loadable",
    "check_renumberable",
    "difference",
    "encoded",
    "expert_of",
    "grid_of",
    "in_place",
    "judged",
    "layered_settings",
    "loaded_values",
    "multipliers",
    "not_loadable",
    "one_thread",
    "places_in_config",
    "places_in_file",
    "plain_bytes",
    "plain_shape",
    "plain_tensor",
    "plain_weight",
    "scheme",
    "settings_differences",
    "settings_paths",
    "stated_problems",
    "stored_format",
    "stored_maps",
    "stored_names",
    "tensor_of",
    "to_dtype",
    "values_of",
    "weight_values",
]
