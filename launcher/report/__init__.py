"""From a run's history to tables, the live view and the HTML page. Reads only."""
