"""The papers' dataset pipeline (PassNet 3.2 to 3.4, App. B): from full graphs to tasks."""
