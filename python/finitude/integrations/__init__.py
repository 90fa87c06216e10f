"""One-line callbacks for training frameworks. Each module imports its framework only when it is used.

    from finitude.integrations.lightning import Finitude                 # Trainer(callbacks=[Finitude()])
    from finitude.integrations.transformers import FinitudeCallback      # Trainer(callbacks=[FinitudeCallback()])
    from finitude.integrations.accelerate import watch                   # with watch(accelerator): ...
    from finitude.integrations import torch_debug                        # a page of torch.distributed.debug

Under `finitude run` none of them is needed; there they do nothing of their own.
"""
