"""Experience for prompts: diagnosis of a candidate, hints that fit it, and the curated knowledge."""
