"""The command line: one verb, one module. The only floor that prints, prompts or exits."""

import gc

# What imports and validation allocate stays to the end: looking through it every 700 objects is a tenth of a verb's time.
gc.set_threshold(50_000, 20, 20)
