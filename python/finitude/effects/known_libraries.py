"""Every table of classes and functions of other libraries that are treated in a way of their own. No library is
imported for it: what is not loaded is not there."""

from __future__ import annotations

# What frameworks call for one micro-batch: (module, class, method). Overrides in subclasses count too. It is called
# once more to explain a bad step (session/step_calls.py).
FRAMEWORKS = (
    ("lightning.pytorch.loops.optimization.automatic", "Closure", "closure"),
    ("lightning.pytorch.strategies.strategy", "Strategy", "training_step"),
    ("pytorch_lightning.loops.optimization.automatic", "Closure", "closure"),
    ("pytorch_lightning.strategies.strategy", "Strategy", "training_step"),
    ("transformers.trainer", "Trainer", "training_step"),
)

# Loggers whose points go to another thread or process, and what counts steps in objects of torch's: (module, class,
# methods). Held for the thread that trains while the step runs again (files.py).
LOGGERS = (
    ("torch.profiler.profiler", "profile", ("step",)),
    ("logging", "Logger", ("callHandlers",)),
    ("tensorboard.summary.writer.event_file_writer", "EventFileWriter", ("add_event",)),
    ("wandb.sdk.wandb_run", "Run", ("_log", "alert")),
)

# Queues and connections, which give each value once: (module, class, methods that read or write) (channels.py).
CHANNELS = (
    ("queue", "Queue", ("get", "put", "task_done")),
    ("multiprocessing.queues", "Queue", ("get", "put")),
    ("multiprocessing.queues", "JoinableQueue", ("put", "task_done")),
    ("multiprocessing.queues", "SimpleQueue", ("get", "put")),
    ("multiprocessing.connection", "_ConnectionBase", ("recv", "recv_bytes", "recv_bytes_into", "send", "send_bytes")),
)
# Those of which no method can be noted: an object that the step can reach is taken as used.
SILENT_CHANNELS = (("socket", "socket"), ("_queue", "SimpleQueue"))
SENDS = (("socket", "socket"), ("ssl", "SSLSocket"))  # whose `send` and `sendall` raise no audit event

# Functions that write a file at a path below Python's own `open`: (module, name, position of the path, its name).
SAVERS = (
    ("torch", "save", 1, "f"),
    ("torch.serialization", "save", 1, "f"),
    ("safetensors.torch", "save_file", 1, "filename"),
    ("safetensors.numpy", "save_file", 1, "filename"),
)

# Functions that write a checkpoint: (module, name, parameter with the values, that with the path or an open file).
CHECKPOINTS = (
    ("torch", "save", "obj", "f"),
    ("torch.serialization", "save", "obj", "f"),
    ("safetensors.torch", "save_file", "tensors", "filename"),
    ("torch.distributed.checkpoint", "save", "state_dict", "checkpoint_id"),
    ("torch.distributed.checkpoint.state_dict_saver", "save", "state_dict", "checkpoint_id"),
    # Lightning's Trainer and Fabric: torch.save sees memory only, which fsspec writes.
    ("lightning.fabric.utilities.cloud_io", "_atomic_save", "checkpoint", "filepath"),
    ("lightning_fabric.utilities.cloud_io", "_atomic_save", "checkpoint", "filepath"),
)

# Objects that hand on what another one gives: (module, class). What they refer to is looked at.
HANDS_ON = (("_pickle", "Unpickler"), ("functools", "partial"))

# What reaches another process, or waits for one, or for a thread that a forked copy does not have: (module, class,
# methods, what a dry run in such a copy ends with) (fork_dry_run.py).
EXCHANGES, UNKNOWN = "exchanges", "unknown"  # it exchanges values with another process; the copy cannot say
REACHES = (
    (
        "multiprocessing.connection",
        "_ConnectionBase",
        ("recv", "recv_bytes", "recv_bytes_into", "send", "send_bytes", "poll"),
        EXCHANGES,
    ),
    ("multiprocessing.synchronize", "Event", ("set", "clear", "wait"), EXCHANGES),
    ("multiprocessing.synchronize", "Condition", ("wait", "wait_for", "notify", "notify_all"), EXCHANGES),
    ("multiprocessing.process", "BaseProcess", ("start", "terminate", "kill", "join"), EXCHANGES),
    ("multiprocessing.pool", "Pool", ("_check_running", "terminate", "close"), EXCHANGES),
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter", ("__init__", "_next_data", "_reset"), UNKNOWN),
    ("concurrent.futures.thread", "ThreadPoolExecutor", ("submit", "shutdown"), UNKNOWN),
    ("concurrent.futures.process", "ProcessPoolExecutor", ("submit", "shutdown"), EXCHANGES),
)
