"""Checks of a job: rules between keys, and the code it names. Reads the user's code and never imports it."""
