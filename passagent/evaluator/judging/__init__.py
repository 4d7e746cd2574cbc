"""One evaluation, on the trusted side: record, check, compare, time, conclude.

`referee.py` is the way in, `judging.py` goes through a task's subgraphs, `verdict.py` makes a result of what
happened.
"""
