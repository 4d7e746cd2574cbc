"""Views for people and agents: progress, tables, summaries."""
