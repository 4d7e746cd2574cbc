"""Both sides' times, in turns: how many calls, by whose clock, and what the speedup and its interval are."""
