"""Models of which transformers reads no quantised attention or shared experts.

While it loads them it gives their modules other names, or joins some, and its quantisers of some
formats do not follow: weights would be missing. Found by loading every family.
"""

from __future__ import annotations

_COMPRESSED, _FP8 = "compressed-tensors", "fp8"
_UNREAD = {
    "axk2": (_COMPRESSED,),
    "deepseek_ocr2": (_COMPRESSED,),
    "deepseek_v4": (_COMPRESSED,),
    "hy_v3": (_COMPRESSED,),
    "kimi_k25": (_COMPRESSED,),
    "laguna": (_COMPRESSED,),
    "lara_mini": (_COMPRESSED, _FP8),
    "mistral_large4": (_COMPRESSED,),
    "qwen3_omni_moe_thinker": (_COMPRESSED,),
    "sarvam_moe": (_COMPRESSED, _FP8),
}


def reads_also(model_type: object, method: str) -> bool:
    """Whether transformers reads more of such a model than its routed experts.

    Args:
        model_type: as config.json states it at the top.
        method: ``quant_method`` of the format.
    """
    return method not in _UNREAD.get(str(model_type), ())
