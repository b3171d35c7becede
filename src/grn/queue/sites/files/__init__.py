"""Files of jobs on nodes: logs copied home, folders sent and results fetched."""
