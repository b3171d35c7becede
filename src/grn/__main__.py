"""`python -m grn`: the command line of this interpreter's grn."""

from grn.cli.main import main

if __name__ == "__main__":
    main()
