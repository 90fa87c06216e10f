"""Tapes of a GPU made by hand, call by call, after the schemas of operators that no CPU has."""

import safetensors.torch
import torch

import tape_format as t
from finitude import _native

GPU = ["cuda:0"]
CODES = {torch.uint8: 0, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}


class Made:
    """A tape of a GPU, call by call, over tensors of this process."""

    def __init__(self):
        self.operators, self.storages, self.entries, self.outcomes = [], [], [], []

    def _storage(self, described, tensor):
        self.storages.append(described)
        return t.tensor(len(self.storages) - 1, list(tensor.shape), list(tensor.stride()), dtype=CODES[tensor.dtype])

    def given(self, tensor):
        plain = tensor.detach().clone()
        return self._storage(t.given(bytes(plain.untyped_storage().tolist())), plain)

    def result(self, like):
        like = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        return self._storage(t.made(like.untyped_storage().nbytes()), like)

    def call(self, name, args, results):
        key = (name, "") if isinstance(name, str) else name
        if key not in self.operators:
            self.operators.append(key)
        self.entries.append(t.call(self.operators.index(key), args, results))

    def outcome(self, *values):
        self.outcomes.extend(values)

    def bytes(self):
        return t.tape(self.operators, self.storages, self.entries, self.outcomes, devices=GPU)

    def play(self, folder):
        """What it came to, in the order of the outcomes."""
        file, out = folder / "made.tape", folder / "out.safetensors"
        file.write_bytes(self.bytes())
        code, said, err, _ = _native.replay_command(["--device", "cpu", "--save-tensors", str(out), str(file)])
        assert out.exists(), said + err
        found = safetensors.torch.load_file(out)
        return [found[key] for key in sorted(found, key=lambda k: (len(k), k))], said


NONE, UNDEFINED = t.NONE, b"\x0a"


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected.detach(), rtol=tolerance, atol=tolerance)


def shuffled(tensor):
    """As the kernels give it: heads behind rows in memory."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def attention(dtype=torch.float32, heads=4, key_heads=4, rows=5, columns=5):
    generator = torch.Generator().manual_seed(3)
    make = lambda h, n: torch.randn(2, h, n, 8, generator=generator).to(dtype).requires_grad_()
    return (
        make(heads, rows),
        make(key_heads, columns),
        make(key_heads, columns),
        torch.randn(2, heads, rows, 8, generator=generator).to(dtype),
    )
