"""A job file's text: values with their places, the schema, and sentences for its faults. Never looks at other files."""
