"""One rank: reads orders from stdin, joins a process group, runs a scene, answers on stdout."""

import importlib
import json
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))


def carried_out(order):
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{order['store']}",
            rank=order["rank"],
            world_size=order["ranks"],
            timeout=timedelta(seconds=order["timeout"]),
        )
        module, _, name = order["scene"].rpartition(":")
        scene = getattr(importlib.import_module(module or "scenes"), name)
        return {"result": scene(**order["args"])}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def serve():
    importlib.import_module("scenes")
    print("READY", flush=True)
    for line in sys.stdin:
        print("ANSWER " + json.dumps(carried_out(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
