"""A training by the Hugging Face Trainer. python trainer_fit.py CONFIGURATION [BAD BATCH | - [callback]]"""

import hashlib
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainerCallback, TrainingArguments, set_seed

warnings.filterwarnings("ignore")
SIZE = 4


def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def note_digest(model):
    """After every step: what the weights are when a later one is stopped."""
    with open("digests.txt", "a") as f:
        f.write(digest(model) + "\n")


class Sentences(Dataset):
    def __init__(self, bad):
        self.words = torch.randint(0, 40, (48, 8))
        self.scale = torch.ones(48)
        if bad is not None:
            self.scale[bad * SIZE + 1] = 0

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "scale": self.scale[i], "labels": self.words[i].sum() % 3}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                         intermediate_size=32, max_position_embeddings=16))
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


class Told(TrainerCallback):
    """What a user's callback sees and leaves behind."""

    def __init__(self):
        self.steps = 0

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps += 1
        note_digest(model)
        with open("steps.txt", "a") as f:
            f.write(f"{state.global_step} {self.steps}\n")


CONFIGURATIONS = {
    "plain": (InOrder, {"max_grad_norm": 0.0}),
    "clipping": (InOrder, {"max_grad_norm": 0.5}),
    "accumulating": (InOrder, {"gradient_accumulation_steps": 3, "max_grad_norm": 0.5}),
    "bf16": (InOrder, {"bf16": True}),
    "overridden": (Overridden, {"dataloader_num_workers": 2}),
    "own_loss": (Weighted, {"gradient_accumulation_steps": 2}),
}


def train(name, bad, callback):
    set_seed(3)
    torch.set_num_threads(1)
    kind, options = CONFIGURATIONS[name]
    model, told = Classifier(), Told()
    arguments = TrainingArguments(output_dir=f"out-{name}", num_train_epochs=2, per_device_train_batch_size=SIZE, use_cpu=True,
                                  learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to=[],
                                  remove_unused_columns=False, **options)
    callbacks = [told]
    if callback:
        from finitude.integrations.transformers import FinitudeCallback

        callbacks.append(FinitudeCallback(report="report.json"))
    trainer = kind(model=model, args=arguments, train_dataset=Sentences(bad), callbacks=callbacks)
    try:
        trainer.train()
    finally:
        logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print(name, "steps", told.steps, "logged", len(logged), "weights", digest(model), flush=True)


if __name__ == "__main__":
    for configuration in sys.argv[1].split(","):
        train(configuration, int(sys.argv[2]) if sys.argv[2:3] not in ([], ["-"]) else None, sys.argv[3:] == ["callback"])
