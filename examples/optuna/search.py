"""A study of Optuna whose trials are jobs of the queue, as many at once as GPUs have room for."""

import argparse
import os
from concurrent.futures import FIRST_COMPLETED, Future, wait

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import grn


def train(trial: optuna.Trial, learning_rate: float, batch_size: int) -> float:
    """Stand for a training: a job of its own, in its own process, on a GPU with room for it."""
    trial.set_user_attr("gpu", os.environ["CUDA_VISIBLE_DEVICES"])
    kept = b"x" * (batch_size << 20)  # on a virtual GPU host memory stands for GPU memory
    loss = 0.0
    for epoch in range(3):
        loss = abs(learning_rate - 0.01) + 0.001 * len(kept) / (64 << 20) + 0.1 / (epoch + 1)
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


def search(study: optuna.Study, trials: int, workers: int) -> None:
    """Ask for trials, hand them to the queue, and tell how each ended, in any order."""
    running: dict[Future[float], optuna.Trial] = {}
    with grn.Executor(max_workers=workers) as pool:
        while trials or running:
            while trials and len(running) < workers:
                trial, trials = study.ask(), trials - 1
                learning_rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
                batch_size = trial.suggest_categorical("batch_size", [16, 32, 64])
                running[pool.submit(train, trial, learning_rate, batch_size)] = trial
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                trial = running.pop(future)
                try:
                    study.tell(trial, future.result())
                except optuna.TrialPruned:
                    study.tell(trial, state=TrialState.PRUNED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="trials that run or wait at once")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--file", default="study.log")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="search",
        storage=JournalStorage(JournalFileBackend(os.path.abspath(options.file))),
        sampler=optuna.samplers.TPESampler(constant_liar=True),  # know of trials under way
        load_if_exists=True,
    )
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    search(study, max(0, options.trials - len(study.get_trials(states=states))), options.workers)
    ended = study.get_trials(states=states)
    gpus = sorted({trial.user_attrs["gpu"] for trial in ended})
    print(f"{len(ended)} trials on GPUs {', '.join(gpus)}; best {study.best_value:.3f}")


if __name__ == "__main__":
    main()
