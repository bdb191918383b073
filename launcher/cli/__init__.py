"""The command line: one verb, one module. The only floor that prints, prompts or exits."""
