"""From tensor expressions to loops over rows, in stages."""
