"""The thin library inside users' programs: standard library only."""
