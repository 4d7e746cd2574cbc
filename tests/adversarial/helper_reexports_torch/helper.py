import torch as t
