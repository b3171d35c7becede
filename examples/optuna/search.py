"""A study of Optuna whose trials run in parallel, each under a lease."""

import argparse
import multiprocessing
import os

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

import grn


def objective(trial: optuna.Trial) -> float:
    learning_rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
    batch_size = trial.suggest_categorical("batch_size", [16, 32, 64])
    return train(trial, learning_rate, batch_size)


@grn.job()
def train(trial: optuna.Trial, learning_rate: float, batch_size: int) -> float:
    """Stand for a training; a trial waits here for a GPU with room, and holds it until the end."""
    trial.set_user_attr("gpu", os.environ["CUDA_VISIBLE_DEVICES"])
    kept = b"x" * (batch_size << 20)  # on a virtual GPU host memory stands for GPU memory
    loss = 0.0
    for epoch in range(3):
        loss = abs(learning_rate - 0.01) + 0.001 * len(kept) / (64 << 20) + 0.1 / (epoch + 1)
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


def work(name: str, file: str, trials: int) -> None:
    """Run trials in this process until the study has enough of them, whoever ran them."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    enough = MaxTrialsCallback(trials, states=(TrialState.COMPLETE, TrialState.PRUNED))
    study = optuna.load_study(
        study_name=name,
        storage=JournalStorage(JournalFileBackend(file)),
        sampler=optuna.samplers.TPESampler(constant_liar=True),  # know of trials under way
    )
    study.optimize(objective, callbacks=[enough])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="trials that run or wait at once")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--file", default="study.log")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(options.file))
    study = optuna.create_study(study_name="search", storage=storage, load_if_exists=True)
    context = multiprocessing.get_context("spawn")  # a fork of a process that used CUDA cannot
    arguments = (study.study_name, options.file, options.trials)
    workers = [context.Process(target=work, args=arguments) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker failed; what it said stands above")
    ended = study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
    gpus = sorted({trial.user_attrs["gpu"] for trial in ended})
    print(f"{len(ended)} trials on GPUs {', '.join(gpus)}; best {study.best_value:.3f}")


if __name__ == "__main__":
    main()
