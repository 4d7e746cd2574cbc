"""From schedules to the text of passes."""
