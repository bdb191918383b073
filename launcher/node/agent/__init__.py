"""One process per node: it starts workers, watches them and obeys the leader. It decides nothing about the run."""
