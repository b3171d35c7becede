"""Pure scheduling decisions: order, fair share, placement, backfill, admission."""
