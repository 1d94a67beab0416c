"""Chat templates in the manner of families, each with a habit of its own that hides answers."""

from __future__ import annotations

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The manner of Qwen3: thoughts of earlier turns are left out, the last turn always has some.
THINKS = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set c = m['content'] %}"
    "{% if m['role'] == 'assistant' %}{% set thought = '' %}"
    "{% if '</think>' in c %}"
    "{% set thought = c.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "<|im_start|>assistant\n{% if loop.index0 > ns.last %}<think>\n{{ thought }}\n</think>\n\n"
    "{% endif %}{{ c }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ c }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The manner of DeepSeek-R1: a turn to be written begins with a thought, earlier ones have none.
BEGINS_A_THOUGHT = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|User|>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|Assistant|>"
    "{{ m['content'].split('</think>')[-1] }}<|end|>"
    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)

# The manner of gpt-oss: the last turn ends with another token, and has a thought before it.
CHANNELS = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{% if loop.last and m.thinking %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m['content'] }}"
    "{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}"
    "{% else %}<|start|>{{ m['role'] }}<|message|>{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)

# The manner of Mistral: no beginning of a turn, and roles must take turns.
BRACKETS = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}<|end|>{% endif %}{% endfor %}"
)

# The manner of Llama 3: texts are stripped.
HEADERS = (
    "{% for m in messages %}<|header|>{{ m['role'] }}<|/header|>\n\n"
    "{{ m['content'] | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|header|>assistant<|/header|>\n\n{% endif %}"
)

# The manner of GLM-4.5: every turn has a thought, an empty one in earlier turns, and no end.
EMPTY_THOUGHTS = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set c = m['content'] %}"
    "{% if m['role'] == 'assistant' %}{% set thought = '' %}"
    "{% if '</think>' in c %}"
    "{% set thought = c.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{% set c = c.split('</think>')[-1] %}{% endif %}"
    "<|Assistant|>\n<think>{% if loop.index0 > ns.last %}{{ thought }}{% endif %}</think>"
    "\n{{ c.strip() }}"
    "{% else %}<|User|>\n{{ c }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|>{% endif %}"
)

# A template that says itself what is generated.
MARKS = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<|im_start|>assistant\n"
    "{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}\n"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|User|>",
    "<|Assistant|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|return|>",
    "<|end|>",
    "<|header|>",
    "<|/header|>",
    "<think>",
    "</think>",
    "<s>",
)
