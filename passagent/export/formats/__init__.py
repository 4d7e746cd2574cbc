"""The forms that trainers take."""
