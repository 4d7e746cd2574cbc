"""The operators of packages as functions, by name, for code that Inductor generates.

A call of `torch.ops.passagent.p_...` goes through torch's dispatcher and twice through Python. Generated code
is below autograd and autocast: there the implementation for its device can be called itself.
registration.py puts the functions here.
"""
