"""One worker process itself: its place in the run, its process group, signals and failures. Never reads data or saves."""
