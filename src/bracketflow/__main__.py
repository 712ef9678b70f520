"""`python -m bracketflow`."""

from bracketflow.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
