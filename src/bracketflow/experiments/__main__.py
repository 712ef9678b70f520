"""`python -m bracketflow.experiments reproduce …` and `… report DIR`."""

from __future__ import annotations

import argparse
import sys

from bracketflow.experiments.command import add_arguments


def main(arguments: list[str] | None = None) -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m bracketflow.experiments", description=__doc__)
    add_arguments(parser.add_subparsers(required=True, metavar="COMMAND"))
    args = parser.parse_args(arguments)
    return int(args.handler(args))


if __name__ == "__main__":
    sys.exit(main())
