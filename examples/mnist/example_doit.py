"""Nine trainings for doit: three frameworks, each with three batch sizes. Not a word about GPUs.

    grn-run "doit -d . -f example_doit.py -n 9"

`-n 9` starts all nine at once; grn holds back those for which there is no room.
"""

import os
import sys

SCRIPTS = ("tf_mnist_train.py", "torch_mnist_train.py", "jax_mnist_train.py")
BATCH_SIZES = (32, 64, 128)
EPOCHS = 3

# Without a GPU the trainings compute on the CPU, where each would start a thread for every core.
# JAX has no such variable that is safe with every version.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}
for name, value in ONE_THREAD.items():
    os.environ.setdefault(name, value)


def task_train():
    """Yield the tasks 0 to 8: all three frameworks with one batch size, then with the next."""
    trainings = [(script, size) for size in BATCH_SIZES for script in SCRIPTS]
    for number, (script, size) in enumerate(trainings):
        command = [sys.executable, script, f"--epochs={EPOCHS}", f"--batch-size={size}"]
        yield {"basename": str(number), "actions": [command]}
