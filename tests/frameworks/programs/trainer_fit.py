"""A training by the Hugging Face Trainer. python trainer_fit.py CONFIGURATION,... [BAD BATCH | - [callback |
callback-skip | without]]

without: all batches of the step that the bad one is in are left out, as if the loop had said `continue` there."""

import os
import sys
import warnings

import torch
from bits import digest, digest_of_rest, note_digest, without_dropout
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainerCallback, TrainingArguments, set_seed

warnings.filterwarnings("ignore")
SIZE = 4


class Sentences(Dataset):
    def __init__(self, bad):
        self.words = torch.randint(0, 40, (48, 8))
        self.scale = torch.ones(48)
        if bad is not None:
            self.scale[bad * SIZE + 1] = 0

    def leave_out(self, first, batches):
        for name in ("words", "scale"):
            whole = getattr(self, name)
            setattr(self, name, torch.cat([whole[: first * SIZE], whole[(first + batches) * SIZE :]]))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "scale": self.scale[i], "labels": self.words[i].sum() % 3}


class Classifier(nn.Module):
    supports_gradient_checkpointing = True

    def gradient_checkpointing_enable(self, **options):
        self.bert.gradient_checkpointing_enable(**options)

    def __init__(self):
        super().__init__()
        self.bert = BertModel(
            BertConfig(
                vocab_size=40,
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=32,
                max_position_embeddings=16,
            )
        )
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids, scale, labels=None):
        first = self.bert(input_ids).last_hidden_state[:, 0] * scale[:, None]
        first = first / first.norm(dim=1, keepdim=True)
        logits = self.head(first)
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


class InOrder(Trainer):
    """The batches come in the order of the data, so that it is known which one is bad."""

    def _get_train_sampler(self, *_):
        return None


class Weighted(InOrder):
    """Its own loss: a weighted mean, of which the weights may all be zero."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        scale = inputs.pop("scale")
        labels = inputs.pop("labels")
        logits = model(**inputs, scale=torch.ones_like(scale))["logits"]
        weight = (scale.min() > 0) * torch.ones_like(scale)
        loss = (nn.functional.cross_entropy(logits, labels, reduction="none") * weight).sum() / weight.sum()
        return (loss, {"logits": logits}) if return_outputs else loss


class Overridden(InOrder):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.mul_(0.5)
        return loss


class Counter(TrainerCallback):
    """What a user's callback sees and leaves behind."""

    def __init__(self, name):
        self.name, self.steps = name, 0

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps += 1
        note_digest(self.name, model)
        with open(f"{self.name}/batches.txt", "a") as f:
            f.write(f"{state.global_step} {self.steps}\n")


CONFIGURATIONS = {
    "plain": (InOrder, {"max_grad_norm": 0.0}),
    "clipping": (InOrder, {"max_grad_norm": 0.5}),
    "accumulating": (InOrder, {"gradient_accumulation_steps": 3, "max_grad_norm": 0.5}),
    "bf16": (InOrder, {"bf16": True}),
    "overridden": (Overridden, {"dataloader_num_workers": 2}),
    "own_loss": (Weighted, {"gradient_accumulation_steps": 2}),
    "checkpointing": (InOrder, {"gradient_checkpointing": True, "optim": "adafactor"}),
    "evaluating": (
        InOrder,
        {
            "eval_strategy": "epoch",
            "save_strategy": "steps",
            "save_steps": 4,
            "save_total_limit": 2,
            "report_to": ["tensorboard"],
        },
    ),
}


def train(name, bad, mode):
    set_seed(3)
    torch.set_num_threads(1)
    kind, options = CONFIGURATIONS[name]
    os.makedirs(name, exist_ok=True)
    model, counter = Classifier(), Counter(name)
    if (
        options.get("gradient_accumulation_steps", 1) > 1
    ):  # a step left out gives back the numbers that its last batch drew
        model.apply(without_dropout)
    arguments = TrainingArguments(
        output_dir=f"{name}/out",
        num_train_epochs=2,
        per_device_train_batch_size=SIZE,
        use_cpu=True,
        learning_rate=1e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=6,
        logging_steps=1,
        remove_unused_columns=False,
        **{"save_strategy": "no", "report_to": [], **options},
    )
    callbacks = [counter]
    if mode.startswith("callback"):
        from finitude.integrations.transformers import FinitudeCallback

        callbacks.append(FinitudeCallback(report="report.json", on_alarm="skip" if mode.endswith("skip") else "stop"))
    rows = Sentences(bad)
    if mode == "without":
        size = options.get("gradient_accumulation_steps", 1)
        rows.leave_out(bad // size * size, size)
    trainer = kind(model=model, args=arguments, train_dataset=rows, eval_dataset=Sentences(None), callbacks=callbacks)
    try:
        trainer.train()
    finally:
        logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print(name, "steps", counter.steps, "logged", len(logged), flush=True)
        rest = digest_of_rest(model, [trainer.optimizer.optimizer], [trainer.lr_scheduler])
        print(name, "rest", rest, "weights", digest(model), flush=True)


if __name__ == "__main__":
    for configuration in sys.argv[1].split(","):
        train(configuration, int(sys.argv[2]) if sys.argv[2:3] not in ([], ["-"]) else None, "".join(sys.argv[3:]))
