"""One shim per older tool: translation only."""
