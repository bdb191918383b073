"""A job file's text: values with their places, the schema, problems in words."""
