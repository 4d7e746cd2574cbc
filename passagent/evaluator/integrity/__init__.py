"""Hold a candidate to its memory: blocks between guard zones.

What host code may do is held at recording (plan/operators.py), what kernels may do by the compilers' checks
(passagent/kernels, plan/ir.py), what they did by audited calls, whose memory lies in blocks.
"""
