"""What agents and the leader say to each other, and the authenticated connection that carries it. Decides nothing."""
