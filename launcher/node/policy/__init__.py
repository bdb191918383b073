"""Evidence in, one decision out. Pure: reads no file, no clock and no process."""
