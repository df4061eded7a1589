"""What each rank that torchrun starts runs: several trainings one after the other, each in a fork of one process.

So torch, transformers and DeepSpeed are imported once. Reads a JSON file: a list of trainings, each with its arguments
and, where it is to be killed, the step whose checkpoint it dies after.

The loss is computed in pieces of five tokens, of which ranks have different numbers. What a rank holds in an optimiser
step goes to a file of the run. ZeRO steps groups of weights one by one, and has gradients in float32 only of the group
that is stepped.
"""

import importlib.util
import json
import os
import signal
import sys
import traceback
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
import transformers
from torch.distributed import PrefixStore, TCPStore
from torch.optim.optimizer import register_optimizer_step_post_hook

import ramet.sft.loss
import ramet.sft.trainer
from ramet.config.compose import compose
from ramet.sft.job import run

if importlib.util.find_spec("deepspeed") is not None:
    import deepspeed  # noqa: F401

ramet.sft.loss.CHUNK_ELEMENTS = 5 * 256
trainer_class = ramet.sft.trainer._Trainer
prepare, save = trainer_class._prepare_for_training, trainer_class._save_checkpoint


def nbytes(tensors):
    return sum(getattr(t, "_local_tensor", t).nbytes for t in tensors if t is not None)


def train(arguments: list[str], dies_after: int | None) -> None:
    def watched(trainer, *given):
        prepared = prepare(trainer, *given)
        inner = getattr(trainer.model_wrapped, "optimizer", None)  # DeepSpeed's, which has AdamW in it

        def look(adam, *_):
            moments = [value for state in adam.state.values() for value in state.values() if value.dim()]
            parameters = {id(p) for p in trainer.model.parameters()}
            passes = [getattr(p, "ds_tensor", p) for p in trainer.model.parameters()]
            gradients = getattr(inner, "grad_partitions_flat_buffer", None)
            held = {
                "weights": nbytes([*passes, *(p for p in adam.state if id(p) not in parameters)]),
                "gradients": nbytes([p.grad for p in adam.state]) if gradients is None else gradients.nbytes,
                "optimiser": nbytes(moments),
            }
            root = next(Path(text[9:]) for text in arguments if text.startswith("run.root="))
            name = next(text[9:] for text in arguments if text.startswith("run.name="))
            (root / name / f"held_{torch.distributed.get_rank()}.json").write_text(json.dumps(held))

        register_optimizer_step_post_hook(look)
        return prepared

    def saved(trainer, *given):
        save(trainer, *given)
        if trainer.state.global_step == dies_after:
            torch.distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)

    trainer_class._prepare_for_training, trainer_class._save_checkpoint = watched, saved
    run(compose(arguments, job="sft"))


def forked(number: int, arguments: list[str], dies_after: int | None) -> int:
    """Train in a child process; returns its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        # Keys of its own in torchrun's store, where the addresses of the children before it still are.
        sys.modules["torch.distributed.rendezvous"].TCPStore = lambda **options: PrefixStore(
            f"training {number}", TCPStore(**options)
        )
        try:
            train(arguments, dies_after)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


transformers.Trainer  # noqa: B018  # imported lazily by name: before the first fork, not in each
for number, (arguments, dies_after) in enumerate(json.loads(Path(sys.argv[1]).read_text())):
    code = forked(number, arguments, dies_after)
    if code != (0 if dies_after is None else -signal.SIGKILL):
        sys.exit(f"training {number} ended with {code}")
