"""A layout of one MoE layer, for tests that care for its tensors alone."""

from collections.abc import Mapping

from moeprune.core.layout import ExpertTensor, MoeLayout


def made_up_layout(tensors: Mapping[str, ExpertTensor], *, experts: int) -> MoeLayout:
    """One layer of ``experts`` experts whose tensors are given."""
    return MoeLayout(
        model_type="made_up",
        layer_ids=(0,),
        num_experts=(experts,),
        top_k=1,
        num_groups=1,
        top_groups=1,
        gating="softmax",
        expert_bytes=(1,),
        count_keys=(("num_experts",),),
        tensors=tensors,
        experts_module="mlp.experts",
        router_module="mlp.gate",
        observer="function",
        quant_method=None,
    )
