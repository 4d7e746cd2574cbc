"""Training examples out of a database: chosen, checked, and written in the form that a trainer takes."""
