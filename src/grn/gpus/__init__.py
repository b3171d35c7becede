"""GPU backends: the GPUs of the machine and one reading of them."""
