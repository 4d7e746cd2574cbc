"""Processes that run what is judged: forked from a warm one, shut in, asked by typed messages.

A worker compares nothing and judges nothing. `process.py` is the referee's handle on it; `worker.py` is what
runs inside.
"""
