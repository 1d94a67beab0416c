"""Ways to see what the experts of a live model receive and give: one file a way.

Each module has ``observing(model, *, layers, sums)``, a context manager inside which every forward
pass of ``model`` reports to ``sums``; on leaving, the model is as it was. Where such a model does
not read a batch in one causal pass, the module also has ``reader(model)``: see
``observe.prefill.one_pass``.
"""
