"""Profile a pass: figures of three tiers in one record, and a diagnosis from them."""
