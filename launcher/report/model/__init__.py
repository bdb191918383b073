"""A run's files read into values. No sentence is made here."""
