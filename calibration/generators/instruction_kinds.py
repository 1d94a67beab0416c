"""All kinds of exercise of the domain ``instruction``."""

from __future__ import annotations

from generators.instruction_amounts import (
    compare_products,
    count_words,
    invoice_check,
    scale_recipe,
    spell_numbers,
    to_table,
)
from generators.instruction_lists import (
    acrostic,
    edit_list,
    group_items,
    remove_duplicates,
    sort_list,
)
from generators.instruction_records import (
    extract_contacts,
    filter_records,
    merge_tables,
    records_to_json,
    redact,
    true_or_false,
)
from generators.instruction_time import (
    convert_dates,
    minutes_to_tasks,
    schedule,
    summarise,
    time_zones,
)
from generators.instruction_writing import (
    cipher,
    config_convert,
    constrained_note,
    name_styles,
    passive_voice,
    rewrite_tone,
)
from generators.piece import Kind

INSTRUCTION_KINDS: tuple[Kind, ...] = (
    sort_list,
    records_to_json,
    to_table,
    count_words,
    convert_dates,
    summarise,
    passive_voice,
    extract_contacts,
    constrained_note,
    acrostic,
    schedule,
    scale_recipe,
    name_styles,
    remove_duplicates,
    group_items,
    redact,
    time_zones,
    true_or_false,
    config_convert,
    spell_numbers,
    edit_list,
    compare_products,
    cipher,
    minutes_to_tasks,
    rewrite_tone,
    invoice_check,
    filter_records,
    merge_tables,
)
