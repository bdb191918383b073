"""A process that has imported torch once and forks workers from itself. Knows no rounds and no leader."""
