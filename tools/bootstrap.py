"""Make a virtual environment in the project root and install grn into it, ready to run and to test.

Standard library only, and the syntax of Python 3.6, so that an old interpreter can report itself.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 10)
DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PIP_TARGET")
STAMP, MAKING = "grn-bootstrap.stamp", "being made"
NO_VENV = "cannot make virtual environments; on Debian or Ubuntu: sudo apt install python3-venv"


def clean_environment():
    """Drop variables that lead Python or pip out of the environment; keep pip's other settings."""
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
    return dict(kept, PIP_USER="0")  # not just dropped: a pip.conf may ask for it too


def run(*command):
    """Run one step, its output on stderr. It inherits the lock, so that an orphan keeps it."""
    env = clean_environment()
    return subprocess.call(command, cwd=ROOT, env=env, stdout=sys.stderr, close_fds=False) == 0


def ask(python, code):
    """Return what an interpreter prints, or None when it does not run or the code fails."""
    command, env = [python, "-I", "-c", code], clean_environment()
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, env=env).decode()
    except (OSError, subprocess.CalledProcessError):
        return None


def version_of(python):
    """Return an interpreter's version; (0, 0, 0) when it does not run, like a stray pyenv shim."""
    text = ask(python, "import sys; print(*sys.version_info[:3])") or "0 0 0"
    return tuple(int(part) for part in text.split())


def choose(asked, own, version, path):
    """Pick (interpreter, version): the one asked for, else the running one, else one on PATH."""
    on_path = [f"{folder}/python3.{minor}" for minor in (13, 12, 11, 10, 14) for folder in path]
    for python in [asked] if asked else [own, *on_path]:
        found = version if python == own else version_of(python)
        if found >= OLDEST:
            return python, found
    sys.exit(f"bootstrap: grn needs Python 3.10 or newer; {asked or own} is not")


def wanted_stamp(pyproject, version, extras, root=ROOT):
    """Name a finished environment; a virtual environment cannot be moved, so its place counts."""
    return hashlib.sha256(repr((pyproject, version, extras, root)).encode()).hexdigest()


def read(*path):
    try:
        with open(os.path.join(*path)) as file:
            return file.read()
    except OSError:
        return None


def write_stamp(venv, text):
    with open(os.path.join(venv, STAMP), "w") as file:
        file.write(text)


def is_ready(venv, *wanted):
    """True when the environment is finished and has one of the wanted stamps."""
    return read(venv, STAMP) in wanted and os.access(venv + "/bin/python", os.X_OK)


def empty(venv):
    """Leave the folder with a mark and nothing else; refuse to touch what is no environment."""
    os.makedirs(venv, exist_ok=True)
    entries = [entry for entry in os.scandir(venv) if entry.name != STAMP]
    if entries and read(venv, STAMP) is None and read(venv, "pyvenv.cfg") is None:
        sys.exit(f"bootstrap: {venv} holds other things; remove it or give another --venv")
    write_stamp(venv, MAKING)
    for entry in entries:
        (shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)


def lends_pip(python):
    """True when the pip of an interpreter can install into another environment."""
    version = (ask(python, "import pip; print(pip.__version__)") or "0").split(".")
    return [int(part) for part in version[:2] if part.isdigit()] >= [22, 3]


def create(venv, python, version, uv):
    """Make the environment, unless a finished one is there and still runs."""
    is_at_home = venv in (read(venv, "bin/activate") or "")
    if is_at_home and read(venv, STAMP) != MAKING and version_of(venv + "/bin/python") == version:
        return
    has_ensurepip = ask(python, "import ensurepip, venv") is not None
    if not has_ensurepip and not uv:
        sys.exit(f"bootstrap: {python} {NO_VENV}")
    empty(venv)
    print(f"making {os.path.relpath(venv)} with {python}", file=sys.stderr)
    # A pip of its own takes a third of the time of the whole installation.
    by_python = [python, "-m", "venv", venv] + ["--without-pip"] * bool(uv or lends_pip(python))
    by_uv = [uv, "venv", "--quiet", "--allow-existing", "--python", python, venv]
    if not run(*(by_python if has_ensurepip else by_uv)):
        sys.exit("bootstrap: the environment could not be made; the lines above say why")


def install(venv, base, extras, uv):
    """Install the project, editable: with uv where there is one; without, or if it fails, pip."""
    python, old = venv + "/bin/python", read(venv, STAMP)
    write_stamp(venv, MAKING)  # found after an interruption, it makes the next run start over
    print("installing grn" + " and its test tools" * bool(extras), file=sys.stderr)
    grn = ["--editable", "." + extras]
    if uv and run(uv, "pip", "install", "-q", "--compile-bytecode", "--python", python, *grn):
        return
    lent = [base, "-m", "pip", "--python", python, "install", "-qq", "--no-input", "--no-compile"]
    if not uv and lends_pip(base) and run(*lent, *grn):  # modules are compiled when they are used
        return
    has_pip = ask(python, "import pip") is not None or run(python, "-m", "ensurepip")
    if not (has_pip and run(python, "-m", "pip", "install", "-qq", "--no-input", *grn)):
        write_stamp(venv, old or "not ours")  # it ended by itself: what was usable still is
        sys.exit("bootstrap: the installation failed; the lines above say why")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", metavar="DIR", default=os.path.join(ROOT, ".venv"))
    parser.add_argument("--python", metavar="PATH", help="the interpreter to build with")
    parser.add_argument("--no-test", action="store_true", help="leave out the test tools")
    parser.add_argument("--extra", default="test", help="the extra with the test tools")
    options = parser.parse_args(argv)
    venv, extras = (
        os.path.realpath(options.venv),
        "" if options.no_test else "[" + options.extra + "]",
    )
    # Inside a virtual environment, perhaps the one to be replaced, take what it stands on.
    own = sys.executable if sys.prefix == sys.base_prefix else os.path.realpath(sys.executable)
    asked = options.python and os.path.abspath(shutil.which(options.python) or options.python)
    python, version = choose(asked, own, sys.version_info[:3], os.get_exec_path())
    pyproject = read(ROOT, "pyproject.toml")
    wanted = wanted_stamp(pyproject, version, extras)
    # An environment with the test tools also serves users who do not need them.
    larger = wanted_stamp(pyproject, version, "[" + options.extra + "]")
    if is_ready(venv, wanted, larger if options.no_test else wanted):
        return
    with open(venv + ".lock", "w") as lock:
        os.set_inheritable(lock.fileno(), True)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready(venv, wanted):
            uv = shutil.which("uv")
            create(venv, python, version, uv)
            install(venv, python, extras, uv)
            write_stamp(venv, wanted)


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyboardInterrupt) as trouble:
        sys.exit("bootstrap: " + (str(trouble) or "interrupted; run it again to start afresh"))
