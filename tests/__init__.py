"""The tests of grn; see CONTRIBUTING.md for how to write one."""
