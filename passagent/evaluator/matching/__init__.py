"""From a pass file to a rewritten graph: load the passes, trace their patterns, match, replace.

Nothing here measures or judges. Recording (passagent/plan) and workers use it alike.
"""
