"""All commands of `grn`: where each is, what it is for, its section in the help, examples."""

from __future__ import annotations

EXIT_STATUS = """
0 success, 1 failure or "no", 2 misuse, 3 no negotiator or queue, 4 impossible on this machine.
`grn exec` returns the status of its command (128 + signal), 125 for an error of grn, 126/127 for a
command that cannot be run or found. `grn run` and `grn wait` return the status of the first command
or job that failed; `grn wait` 124 for a job that reached its time limit, 125 for one without a
status.""".strip()
EPILOG = f"""
Run `grn help COMMAND` for its options and examples.

Exit status: {EXIT_STATUS}"""

# What other tools call these commands.
SYNONYMS = {
    "status": "ls or gpus", "info": "show", "stats": "top", "kill": "cancel",
    "rm": "cancel or clean", "pause": "drain or hold", "resume": "drain or release",
    "tail": "logs", "add": "submit", "sbatch": "submit", "squeue": "ls", "scancel": "cancel",
    "nvidia-smi": "gpus",
}  # fmt: skip
COMMANDS = {
    "start": ("grn.cli.commands.daemon:start", "Start the negotiator (in the foreground)."),
    "stop": ("grn.cli.commands.daemon:stop", "Stop the negotiator; running jobs go on."),
    "run": ("grn.cli.commands.daemon:run", "Run commands with a negotiator, started if needed."),
    "exec": ("grn.cli.commands.run.execute:execute", "Run one command when a GPU has room."),
    "select": (
        "grn.cli.commands.run.select:select",
        "Reserve GPUs for a script and print their numbers.",
    ),
    "submit": (
        "grn.cli.commands.queue.submit:run",
        "Submit a command to your queue; prints its id.",
    ),
    "ls": ("grn.cli.commands.queue.listing:ls", "List your jobs: running, waiting and why."),
    "show": ("grn.cli.commands.queue.jobs:show", "Show all about jobs."),
    "logs": ("grn.cli.commands.queue.logs:logs", "Print the output of jobs."),
    "wait": ("grn.cli.commands.queue.waiting:wait", "Wait until jobs have ended."),
    "cancel": ("grn.cli.commands.queue.jobs:cancel", "Cancel jobs, with all their processes."),
    "retry": ("grn.cli.commands.queue.jobs:retry", "Submit ended jobs again."),
    "hold": ("grn.cli.commands.queue.jobs:hold", "Hold queued jobs."),
    "release": ("grn.cli.commands.queue.jobs:release", "Release held jobs."),
    "move": ("grn.cli.commands.queue.jobs:move", "Move jobs in the queue."),
    "edit": ("grn.cli.commands.queue.jobs:edit", "Change the options of a waiting job."),
    "drain": ("grn.cli.commands.queue.jobs:drain", "Pause or resume your queue."),
    "history": ("grn.cli.commands.queue.jobs:history", "Show jobs that have ended."),
    "clean": ("grn.cli.commands.queue.jobs:clean", "Delete ended jobs and their logs."),
    "queue": ("grn.cli.commands.queue.jobs:queue_command", "Show, start or stop your queue."),
    "site": ("grn.cli.commands.sites.site:site", "Add other machines to your queue."),
    "sites": ("grn.cli.commands.sites.site:all_sites", "Show the machines of your queue."),
    "notify": ("grn.cli.commands.notify:notify", "Send a message when a job has ended."),
    "service": (
        "grn.cli.commands.service:service",
        "Keep your queue running through logout and reboot.",
    ),
    "sweep": ("grn.cli.commands.run.sweep:sweep", "Run a command for many parameter values."),
    "batch": ("grn.cli.commands.run.batch:batch", "Run each line of a file on GPUs with room."),
    "top": ("grn.cli.top.app:top", "Watch GPUs and jobs on one screen."),
    "gpus": ("grn.cli.commands.machine:gpus", "Show the GPUs: memory used, reserved, free."),
    "ps": ("grn.cli.commands.machine:ps", "Show the jobs of all users, and why they wait."),
    "when": ("grn.cli.commands.status:when", "Estimate when a job would start."),
    "book": ("grn.cli.commands.book:book", "Book GPUs for a time, list and remove bookings."),
    "why": ("grn.cli.commands.status:why", "Explain why a job waits, or where it runs."),
    "shares": ("grn.cli.commands.status:shares", "Show the recent GPU use of each user."),
    "idle": ("grn.cli.commands.status:idle", "Show who holds GPUs and does not use them."),
    "events": ("grn.cli.commands.events:events", "Print events as JSON lines."),
    "metrics": ("grn.cli.commands.events:metrics", "Print metrics for Prometheus."),
    "profiles": (
        "grn.cli.commands.status:profiles",
        "Show or forget what was learned about job types.",
    ),
    "audit": ("grn.cli.commands.status:audit", "Show who changed what belongs to others."),
    "simulate": (
        "grn.cli.commands.simulate:simulate",
        "Replay a workload on GPUs that you do not have.",
    ),
    "web": ("grn.cli.web.command:web", "Serve GPUs and jobs as a page on this machine."),
    "report": ("grn.cli.report.command:report", "Write an HTML report of a period or a sweep."),
    "demo": ("grn.cli.commands.demo:demo", "Watch real jobs share virtual GPUs, in seconds."),
    "doctor": ("grn.cli.commands.doctor:doctor", "Check this machine and suggest fixes."),
    "help": ("grn.cli.app:show_help", "Show the help of a command."),
    "completion": ("grn.cli.commands.doctor:completion", "Print the shell completion script."),
}

# What `grn --help` lists together.
SECTIONS = {
    "Run now": "exec run select batch sweep",
    "Submit and walk away": "submit ls show logs wait cancel retry hold release move edit drain "
    "history clean notify queue service site sites",
    "Look": "top web gpus ps why when idle profiles shares report events metrics",
    "The negotiator": "start stop book audit",
    "Try and set up": "demo simulate doctor completion help",
}

EXAMPLES = {
    "submit": (
        "grn submit -- python train.py --lr 0.1",
        "grn submit --gpus 2 --mem 12GiB -- torchrun --nproc-per-node=gpu train.py",
        "grn submit --retry 2 --time-limit 12h -- python train.py",
        "grn submit --begin 22:00 -- python train.py",
        "grn submit --after 41 --shell -- 'python eval.py > eval.txt'",
        "grn submit --array 0-9 --shell -- 'python train.py --seed $GRN_ARRAY_INDEX'",
        "grep -v skip commands.txt | grn submit --lines -",
    ),
    "ls": ("grn ls", "grn ls -a --state failed", "grn ls -q --name sweep3 | xargs grn cancel"),
    "exec": (
        "grn exec -- python train.py --lr 0.1",
        "grn exec --gpus 2 --mem 12GiB -- torchrun --nproc-per-node=gpu train.py",
    ),
    "run": ('grn run "python job.py" "python job.py"', 'grn run "doit -n 9"'),
    "select": (
        "gpu=$(grn select --mem 6GiB) || exit",
        "CUDA_VISIBLE_DEVICES=$gpu python train.py",
        "grn select --release",
    ),
    "batch": (
        "grn batch jobs.txt",
        "grn batch jobs.txt --resume --retry 1",
        "generate_jobs | grn batch --mem 6GiB",
    ),
    "edit": ("grn edit 41 --mem 12GiB --priority 5", "grn edit 41 --time-limit 0"),
    "events": (
        "grn events --follow --only ended",
        "grn events --follow --only waiting --only granted | jq .data.why",
    ),
    "simulate": (
        "grn simulate --gpus 4x40GB --generate 100",
        "grn history --export jobs.csv && grn simulate --gpus 6x24GB --jobs jobs.csv",
    ),
    "web": ("grn web", "grn web --port 8642 --open", "grn web --link"),
    "report": ("grn report --since 4w --out october.html", "grn report --sweep sweeps/lr"),
    "completion": (
        'eval "$(grn completion bash)"   # in ~/.bashrc',
        'eval "$(grn completion zsh)"    # in ~/.zshrc',
        "grn completion fish > ~/.config/fish/completions/grn.fish",
    ),
    "help": ("grn help submit", "grn help profiles show", "grn help --man submit | man -l -"),
    "start": ("grn start", "grn start --virtual 2x2GiB --background"),
    "stop": ("grn stop",),
    "show": ("grn show 41", "grn show 40-45 train"),
    "logs": ("grn logs 41", "grn logs -f 41", "grn logs -n 20 40-45 train"),
    "wait": ("grn wait 41 42", "grn wait --all"),
    "cancel": ("grn cancel 41", "grn cancel 40-45 train 'grid[3]'", "grn cancel --tag night"),
    "retry": ("grn retry 41", "grn retry --name grid --state failed"),
    "hold": ("grn hold 41 42", "grn hold --tag night"),
    "release": ("grn release 41",),
    "move": ("grn move --front 41", "grn move --priority 10 41 42"),
    "drain": ("grn drain", "grn drain --off"),
    "history": (
        "grn history -n 10",
        "grn history --since 1d --state failed",
        "grn history --export jobs.csv",
    ),
    "clean": ("grn clean --older-than 7d",),
    "notify": (
        "grn submit --notify 'grn notify --ntfy https://ntfy.sh/my-jobs' -- python train.py",
        "grn notify --slack @~/.config/grn/webhook 'the data is there'",
    ),
    "queue": ("grn queue", "grn queue stop"),
    "site": (
        "grn site add lab --ssh gpu2 gpu3",
        "grn site add uni --slurm --gpus 4 --time 24h --partition gpu",
        "grn site add cloud --ray auto --gpus 1",
        "grn site check lab",
    ),
    "sites": ("grn sites",),
    "service": ("grn service install",),
    "sweep": (
        "grn sweep 'python train.py --lr {lr} --bs {bs}' -p lr 1e-3 1e-4 -p bs 32 64",
        "grn sweep 'python train.py --lr {lr}' -p lr log:1e-5..1e-2 --n-samples 20",
        "grn sweep --file sweep.toml --dry-run",
        "grn sweep show sweeps/train-3fa2c1 --metric accuracy --maximize -n 5",
        "grn sweep plot sweeps/train-3fa2c1",
    ),
    "top": ("grn top",),
    "gpus": ("grn gpus", "grn gpus --json"),
    "ps": ("grn ps", "grn ps --json"),
    "metrics": ("grn metrics",),
    "shares": ("grn shares", "grn shares --json"),
    "idle": ("grn idle", "grn idle --json"),
    "when": ("grn when --gpus 2 --mem 20GiB --for 6h", "grn when --type train.py --json"),
    "book": (
        "grn book -g 2 --from 'tomorrow 9:00' --for 4h",
        "grn book --from 22:00 --for 8h --on a100",
        "grn book ls",
        "grn book rm 3",
    ),
    "why": ("grn why 41", "grn why 264f", "grn why train.py::fit"),
    "audit": ("grn audit", "grn audit -n 500 --json"),
    "profiles": ("grn profiles", "grn profiles show train.py", "grn profiles forget train.py"),
    "demo": ("grn demo",),
    "doctor": ("grn doctor",),
}
