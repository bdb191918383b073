"""What planning must know of this machine. Reads; never submits."""
