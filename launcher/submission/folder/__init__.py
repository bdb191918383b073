"""What is written into a run's folder before it starts. Knows no backend."""
