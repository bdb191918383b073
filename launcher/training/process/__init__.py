"""What one process knows and says of itself: its place, its process group, its signals, its failure."""
