"""The live view: screens and what they show. The terminal itself is the verb's."""
