"""Rules between keys, and whether the named code exists. Imports none of the user's code."""
