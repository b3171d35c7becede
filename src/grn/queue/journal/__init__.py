"""The SQLite file of the queue: jobs, environments and attempts, each row with a checksum."""
