"""A search is (fitness, selection policy, universal operator, stopping rule) over the graph of nodes.

That is KernelEvolve 3.1. Fitness is the AS of correct nodes. policies.py selects parents. The operator is an
agent's episode (expansion.py); episode_context.py gathers its prompt. stop.py holds the stopping rules, and
controller.py runs the islands side by side.
"""
