"""Runs of `bracketflow track` by all ranks of a test."""

import os
import time
from unittest import mock

import torch.distributed as dist
from scenes import counting, digest

from bracketflow.tracking import page, session
from bracketflow.tracking.settings import Settings
from bracketflow.tracking.together import Together


class StopAfter:
    """A signal that comes when so many batches were begun; on one rank only, or on none."""

    def __init__(self, rank, batches, number):
        self.left = batches if rank == dist.get_rank() else None
        self.number = number
        self.told = None

    @property
    def signal(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                return self.number
        return self.told

    @signal.setter
    def signal(self, number):
        self.told = number


def at_batch(rank, batches, act):
    """A `run` that does something on one rank when so many batches have passed."""

    def watched(method, stream, state, **options):
        def passing():
            for number, batch in enumerate(stream):
                if number == batches and dist.get_rank() == rank:
                    act()
                yield batch

        return RUN(method, passing(), state, **options)

    return watched


RUN = session.run
ACTS = {"dies": lambda: os._exit(9), "hangs": lambda: time.sleep(60)}


def followed(of_rank=None, **options):
    """`one_run`, with other options on some ranks."""
    return one_run(**{**options, **(of_rank or {}).get(str(dist.get_rank()), {})})


def one_run(source, out, settings=None, stop=(-1, 0, 0), act=None, **options):
    """One run without figures; what it found, the bits of its end, and its messages."""
    ranks = Together(own_files="{rank}" in source)
    ends = []

    def kept(*args, **others):
        result = (RUN if act is None else at_batch(*act[:2], ACTS[act[2]]))(*args, **others)
        ends.append(result.state)
        return result

    stopping = StopAfter(*stop)
    with (
        mock.patch.object(page, "_draw", return_value=False),
        mock.patch.object(session, "run", kept),
        counting() as calls,
    ):
        outcome = session.follow(
            source,
            out,
            Settings(**(settings or {})),
            interruption=stopping,
            ranks=ranks,
            **options,
        )
    return {
        "status": outcome.status.name,
        "problem": outcome.problem,
        "refused": outcome.refused,
        "signal": stopping.told,
        "rows": outcome.summary["rows"],
        "bits": digest(*ends),
        "messages": calls["all_reduce"],
    }
