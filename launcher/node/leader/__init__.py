"""The part of the first node's agent that decides. It reads the board, asks the policy and writes the run's history."""
