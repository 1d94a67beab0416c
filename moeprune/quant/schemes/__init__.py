"""Schemes of quantisation: how one weight is written so that loaders read it. One file each.

A weight is a matrix (out, in). A file of this folder is one scheme. It defines

==============  ================================================================================
``BITS``        bits of one number, scales not counted
``METHOD``      the ``quant_method`` that config.json states
``group_size``  ``group_size(shapes, wanted)``: the group size (of fp8, the side of a block) for
                weights of these shapes: ``wanted``, or the default that divides them.
                Raises UnsupportedModelError: a weight that the scheme cannot write
``parts``       ``parts(shape, options)``: (what follows the map's name, safetensors dtype, shape)
                of every tensor that it becomes, in order, known before the weight is read
``encode``      ``encode(weight, options)``: the bytes of those parts, in their order; ``weight`` is
                a torch tensor (out, in) in the type that the source stores
``numbers``     ``numbers(parts, shape, options)``: what loaders make of them, not yet rounded to
                the model's type: the numbers of the weight in order, in runs that stay in the
                cache: float32 tensors of any shape, of which one lasts until the next
``decode``      ``decode(parts, shape, options)``: the same as one float32 torch tensor (out, in)
``caveat``      may be missing; ``caveat(shapes, options)``: what whoever loads such weights must
                know, in one line, or None
``settings``    ``settings(written)``: ``quantization_config`` of config.json; ``written`` is a
                :class:`moeprune.quant.Written`
==============  ================================================================================
"""
