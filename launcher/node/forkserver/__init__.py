"""A process that has imported torch once and forks workers from itself. Never handles rounds; knows no leader."""
