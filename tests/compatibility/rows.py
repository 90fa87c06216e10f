"""The rows of the table in docs/compatibility.md: what is run, and what has to come out of it.

Each program below programs/ is an ordinary training whose birth is the statement marked `# birth`. Step, line, veto and
side effects were read off the program and off a run without us; the way of the second run is the one that the page
promises to users."""

import dataclasses
import sys


@dataclasses.dataclass(frozen=True)
class Row:
    shape: str  # as the page says it
    program: str  # below programs/, without .py
    detected: str  # "step N, sink", "advisory, step N", or why not
    way: str = "rewind"  # of the second run: rewind, restart, none
    rerun: str = "persistent"  # its verdict
    vetoed: str = "yes"
    verified: str = "yes"
    line: str = "right"
    effects: str = "none"  # what a user sees of us besides our words and the step left out
    launcher: tuple = ()  # words in place of the program's path; {program} stands for it. Runs in processes of its own
    policy: str = "skip"  # of the run that is looked at; without a launcher a second one is under `warn`

    @property
    def name(self):
        return self.program if not self.launcher else f"{self.program}-{len(self.launcher)}"


PYTHON = sys.executable
LOOPS = [
    Row("`for` over `range` at module level", "module_level", "step 7, loss"),
    Row("functions, `enumerate(tqdm(loader))`, shuffled, epochs", "functions", "step 1, loss"),
    Row("`Trainer` class, callbacks, CSV file, `logging`", "trainer_class", "step 4, loss"),
    Row("handlers by event, checkpoints, a progress line written over", "callbacks_events", "step 2, loss"),
    Row("a step closure with `nonlocal` counters", "closure_step", "step 5, loss"),
    Row("a generator drives the loop", "generator_drives", "step 6, loss"),
    Row("`with` blocks and context managers around the step", "with_blocks", "step 4, loss"),
    Row("`try`, `except`, `else`, `finally` around the step", "try_finally", "step 5, gradient"),
    Row("recursion instead of a loop", "recursion", "step 5, loss", way="restart"),
    Row("`while True` with the next batch fetched before the step", "while_prefetch", "step 9, loss"),
    Row("explicit `iter` and `next`, loader started again", "iter_next", "step 5, loss"),
    Row("`zip(cycle(loader), loader)`", "zip_loaders", "step 6, loss"),
    Row("`enumerate(islice(chain(...)), 1)` over iterable data sets", "islice_chain", "step 7, loss"),
    Row("two persistent workers, own `collate_fn`", "persistent_workers", "step 10, loss"),
    Row("batches taken out of a `deque` until it is empty", "popped_list", "step 7, loss", way="restart"),
    Row("parts of each batch taken out (`batch.pop`), the rest given by keywords", "popped_parts", "step 4, loss"),
    Row("list comprehension over a `partial`", "comprehension", "step 4, loss"),
    Row("a coroutine awaits its batches", "asynchronous", "step 5, loss", way="restart"),
    Row("gradient accumulation, clipping, `LambdaLR`", "accumulation", "step 3, loss"),
    Row("GAN, alternating, gradient penalty", "gan_alternating", "step 5, loss", way="jump"),
    Row("two optimizers step after one backward", "gan_joint", "step 6, loss", way="jump"),
    Row("two optimizers share parameters", "shared_parameters", "step 5, loss", way="jump"),
    Row("contrastive pair: one backward, two optimizers, two schedulers", "contrastive", "step 5, loss", way="jump"),
    Row("LBFGS", "lbfgs", "step 4, loss", way="closure"),
    Row(
        "PPO, epochs of mini-batches", "ppo", "step 16, loss", way="restart"
    ),  # the environment goes on in the second run
    Row("REINFORCE, episodes of any length", "reinforce", "step 6, loss"),
    Row("meta-learning, inner loop with `create_graph`", "meta_learning", "step 4, loss"),
    Row("`torch.func`: `vmap(grad(...))`, gradients set manually", "torch_func", "step 5, gradient"),
    Row(
        "`torch.func` alone: parameters in a dict, `grad_and_value`",
        "functional_only",
        "step 5, loss",
        way="restart",
        vetoed="no",
    ),
    Row("no optimizer: `autograd.grad`, update under `no_grad`", "no_optimizer", "step 6, loss", way="restart"),
    Row("no optimizer: `p -= lr * p.grad`", "manual_sgd", "step 5, loss", way="restart"),
    Row("no optimizer: the step given by `finitude.step`", "given_step", "step 5, loss", way="closure"),
    Row("backward in a thread", "backward_in_thread", "step 4, loss"),
    Row("training loop in a thread", "loop_in_thread", "step 3, loss", way="restart"),
    Row("activation checkpointing, both sorts", "checkpointing", "step 5, loss"),
    Row("float16 autocast, `GradScaler`, `unscale_`, `StepLR`", "mixed_precision", "step 5, loss"),
    Row("`AveragedModel`, `OneCycleLR`, `update_bn`", "averaged_model", "step 6, loss"),
    Row("hand-written EMA, target network, `ReduceLROnPlateau`", "averages_by_hand", "step 6, loss"),
    Row("an optimizer of the author's own, sparse gradients", "own_optimizer", "step 6, loss"),
    Row("`torch.compile`", "compiled", "step 5, loss"),
    Row("a bad gradient, the loss finite", "gradient_only", "step 5, gradient"),
    Row("a tracer owns `sys.settrace` and reads locals", "traced_by_coverage", "step 4, loss"),
    Row(
        "`cProfile` and `torch.profiler` (which count the second run too; the report says so)",
        "profiled",
        "step 4, loss",
    ),
]

HARD = [
    Row("batch normalised in place, in the data set's memory", "batch_in_place", "step 5, loss", way="restart"),
    Row(
        "unseeded noise in every step",
        "order_dependent",
        "step 5, loss",
        way="restart",
        rerun="order-dependent",
        verified="no",
    ),
    Row("batches from a socket, each once", "one_shot_stream", "step 5, loss", way="restart"),
    Row("batches through a queue that a thread fills", "prefetch_thread", "step 5, loss", way="restart"),
    Row("a file that another writes to while it is read", "file_in_writing", "step 5, loss", way="restart"),
    Row(
        "a step that fails only once",
        "fails_once",
        "step 5, loss",
        way="restart",
        rerun="transient",
        verified="no",
        line="none",
    ),
    Row("the script catches whatever a step raises", "swallows_everything", "step 3, loss"),
    Row(
        "checks the loss before backward and raises",
        "checks_and_raises",
        "step 4, loss",
        way="restart",
        vetoed="by the script",
    ),
    Row(
        "checks the loss after backward and leaves the loop",
        "checks_and_breaks",
        "advisory, step 6",
        way="restart",
        vetoed="by the script",
    ),
    Row(
        "checks the loss before backward, `continue`",
        "checks_and_continues",
        "advisory, step 6",
        vetoed="by the script",
    ),
    Row("checks the gradients, `continue`", "checks_after_backward", "advisory, step 6", vetoed="by the script"),
]

LAUNCHERS = [
    Row("`python -m package`", "runs_as_module", "step 4, loss", launcher=("-m", "{name}")),
    Row("`torch.multiprocessing.spawn` and `Process`", "spawned_ranks", "step 3, loss", launcher=("{program}",)),
    Row("`multiprocessing.Pool.map` over settings", "search_in_pool", "step 4, loss", launcher=("{program}",)),
    Row("a script that starts `python child.py`", "starts_children", "step 4, loss", launcher=("{program}",)),
    Row(
        "`torchrun`, two ranks, DDP",
        "two_ranks",
        "step 3, loss",
        policy="stop",
        launcher=(PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "{program}"),
    ),
    Row(
        "`python -m cProfile`",
        "module_level",
        "step 7, loss",
        launcher=(PYTHON, "-m", "cProfile", "-o", "/dev/null", "{program}"),
    ),
    Row("a notebook, `%load_ext finitude`", "module_level", "step 7, loss", launcher=("notebook",)),
]

GROUPS = {"Loops": LOOPS, "Hard cases": HARD, "Launchers": LAUNCHERS}
