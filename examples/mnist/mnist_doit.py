"""The same nine tasks under the other name they are known by."""

from example_doit import task_train

__all__ = ["task_train"]
