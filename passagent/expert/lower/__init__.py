"""From operators to tensor expressions."""
