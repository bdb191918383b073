"""The HTML page of a run. Loads nothing from anywhere."""
