"""A run's files read into values, and sentences about what is wrong or slow now. No lines are laid out here."""
