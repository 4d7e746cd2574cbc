"""Tasks and subgraphs on disk: read, check, rebuild inputs, capture. This level does not import torch."""

from passagent.tasks.meta import TensorMeta
from passagent.tasks.reader import Subgraph, Task, load_task

__all__ = ["Subgraph", "Task", "TensorMeta", "load_task"]
