"""From a model to its faster model: regions, searches, a package, and what came of it."""
