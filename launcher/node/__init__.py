"""On every node of the allocation: agents, the leader, what they share. Never imports torch."""
