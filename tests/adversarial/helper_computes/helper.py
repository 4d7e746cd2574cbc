def combine(x, y):
    return x.add(y).relu()  # <- here
