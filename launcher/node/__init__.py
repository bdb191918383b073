"""On the nodes: agent, leader, protocol, decisions. Never imports torch; standard library and psutil only."""
