from torch import add as combine
