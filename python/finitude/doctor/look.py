"""In the process that runs the user's script: what is seen of its first steps. Plain data comes out; nothing is changed.

Every hook is guarded: a failure of ours is noted and the script goes on as if we were not there.
"""

import functools
import os
import sys
import threading
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _native, _places, discover
from ..errors import Reached
from ..report import safe

MAX_EVENTS, MAX_LAYERS, MAX_PARAMETERS, MAX_TENSORS = 20_000, 2_000, 5_000, 200
HALF_NORMAL = 6.103515625e-05   # the smallest normal float16
SAMPLE = 1 << 20                # elements of a gradient whose small values are counted


def place():
    """(file, line) of the innermost frame of the user's."""
    frame = sys._getframe(1)
    while frame is not None:
        if not _places.is_library(frame.f_code.co_filename):
            return os.path.abspath(frame.f_code.co_filename), frame.f_lineno
        frame = frame.f_back
    return "", 0


def statistics(t):
    """Counts and range of a tensor as plain numbers; None for one without memory to read."""
    t = t.detach()
    if t.device.type not in ("cpu", "meta"):
        t = t.cpu()
    if t.is_floating_point() or t.is_complex():
        s = _native.statistics(t)
        if not s:
            return None
        finite = s["numel"] - s["nan"] - s["inf"]
        return {**s, "finite": finite}
    if t.device.type == "meta" or t.layout != torch.strided or not t.numel():
        return None
    return {"min": float(t.min()), "max": float(t.max()), "nan": 0, "inf": 0, "numel": t.numel(), "finite": t.numel()}


def tensors_of(value, name="", depth=0):
    """(name, tensor) in nested containers."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < 6:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else \
            vars(value).items() if hasattr(value, "__dataclass_fields__") else ()
        for key, item in items:
            yield from tensors_of(item, f"{name}.{key}" if name else str(key), depth + 1)


class Look(TorchDispatchMode):
    """Looks on until `steps` steps of one optimizer are over."""

    def __init__(self, steps, write):
        super().__init__()
        self.wanted, self.write = steps, write
        self.pid, self.begin = os.getpid(), time.monotonic()
        self.busy = False
        self.depth = {}               # thread -> modules on its stack
        self.autocast_on = {}         # thread -> autocast regions open
        self.names = {}               # id(module) -> name
        self.counts, self.ordinals, self.before = {}, {}, {}
        self.seen_layers = set()
        self.backward_depth = 0
        self.facts = {"ended": "", "error": "", "torch": torch.__version__, "events": [], "autocast": [], "inputs": [], "layers": [],
                      "losses": [], "attention": [], "steps": [], "trouble": [], "half_activations": [], "steps_wanted": steps}
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self):
        self.busy = True

    # -- helpers -------------------------------------------------------------------------------

    def looking(self, function, *args):
        """Calls one of our observers: not re-entered, and never a failure of the script's."""
        if self.busy:
            return
        self.busy = True
        try:
            with torch.no_grad():
                function(*args)
        except Reached:
            raise
        except Exception as e:
            if len(self.facts["trouble"]) < 20:
                self.facts["trouble"].append(f"{function.__name__}: {type(e).__name__}: {e}"[:300])
        finally:
            if os.getpid() == self.pid:
                self.busy = False

    def event(self, what, **more):
        if len(self.facts["events"]) < MAX_EVENTS:
            file, line = place()
            self.facts["events"].append({"what": what, "file": file, "line": line, **more})

    def over(self, how, error=""):
        """Writes what was seen."""
        self.facts.update(ended=how, error=error[:2000], seconds=round(time.monotonic() - self.begin, 3))
        try:
            self._environment()
        except Exception as e:
            self.facts["trouble"].append(f"environment: {type(e).__name__}: {e}"[:300])
        self.write(safe(self.facts))

    def _environment(self):
        b, f = torch.backends, self.facts
        try:
            f["matmul_precision"] = torch.get_float32_matmul_precision()
            f["tf32"] = {"matmul": b.cuda.matmul.allow_tf32, "cudnn": b.cudnn.allow_tf32}
        except RuntimeError as e:  # torch refuses to tell where old and new settings are mixed
            f["precision_error"] = str(e)[:500]
        f["anomaly"] = torch.is_anomaly_enabled()
        f["deterministic"] = torch.are_deterministic_algorithms_enabled()
        f["fill_uninitialized"] = torch.utils.deterministic.fill_uninitialized_memory
        f["cudnn_benchmark"], f["cudnn_deterministic"] = b.cudnn.benchmark, b.cudnn.deterministic
        f["cublas_workspace"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        f["cuda"] = torch.cuda.is_available() and torch.cuda.is_initialized()
        f["capability"] = list(torch.cuda.get_device_capability()) if f["cuda"] else None
        f["device_name"] = torch.cuda.get_device_name() if f["cuda"] else "CPU"
        f["seeded"] = torch.initial_seed() != 67280421310721  # what a generator starts with that nobody seeded

    # -- modules and their inputs --------------------------------------------------------------

    def call_module(self, original, module, args, kwargs):
        thread = threading.get_ident()
        depth = self.depth.get(thread, 0)
        if self.busy or not torch.is_grad_enabled() or os.getpid() != self.pid:
            return original(module, *args, **kwargs)
        if depth == 0:
            self.looking(self._root_called, module, args, kwargs, thread)
        self.depth[thread] = depth + 1
        try:
            out = original(module, *args, **kwargs)
        finally:
            self.depth[thread] = depth
        if not module._modules or module._parameters:
            self.looking(self._layer_done, module, out)
        return out

    def _root_called(self, module, args, kwargs, thread):
        if id(module) not in self.names:
            for name, inner in module.named_modules():
                self.names.setdefault(id(inner), name)
        has_parameters = next(module.parameters(), None) is not None
        open_elsewhere = [t for t, n in self.autocast_on.items() if n and t != thread]
        if has_parameters and open_elsewhere and not self.autocast_on.get(thread):
            self.event("thread-without-autocast", module=type(module).__name__)
        for name, t in [*tensors_of(args, "input"), *tensors_of(kwargs)]:
            if not t.requires_grad and t.grad_fn is None:
                self._data(f"{name} of {type(module).__name__}", t)

    def _data(self, name, t):
        if len(self.facts["inputs"]) < MAX_TENSORS and (s := statistics(t)):
            self.facts["inputs"].append({"name": name, "dtype": str(t.dtype)[6:], "shape": list(t.shape), "at": place(),
                                         **{k: s[k] for k in ("nan", "inf", "min", "max", "numel")},
                                         "rows": self._bad_rows(t) if s["nan"] or s["inf"] else []})

    @staticmethod
    def _bad_rows(t):
        if t.dim() < 1:
            return []
        bad = ~torch.isfinite(t.detach().reshape(t.shape[0], -1)).all(dim=1)
        return bad.nonzero().flatten().tolist()[:20]

    def _layer_done(self, module, out):
        if not isinstance(out, torch.Tensor) or not out.is_floating_point() or len(self.facts["layers"]) >= MAX_LAYERS:
            return
        if id(module) in self.seen_layers or not (s := statistics(out)):
            return
        self.seen_layers.add(id(module))
        n = max(s["finite"], 1)
        self.facts["layers"].append({
            "name": self.names.get(id(module), ""), "class": type(module).__name__, "dtype": str(out.dtype)[6:],
            "rms": (s["sum_sq"] / n) ** 0.5, "absmax": s["absmax"], "nan": s["nan"], "inf": s["inf"], "at": place(),
            "weights": any(p is not None and p.dim() >= 2 for p in module._parameters.values())})

    # -- operations ----------------------------------------------------------------------------

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name if hasattr(func, "_schema") else ""
        watcher = WATCHED.get(name)
        if watcher is not None and not self.busy and self.backward_depth == 0 and torch.is_grad_enabled() and os.getpid() == self.pid:
            self.looking(watcher, self, name, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _nll(self, name, args, kwargs):
        log_p, target = args[0], args[1]
        ignore = kwargs.get("ignore_index", args[4] if len(args) > 4 else -100)
        reduction = kwargs.get("reduction", args[3] if len(args) > 3 else 1)
        if len(self.facts["losses"]) >= MAX_TENSORS:
            return
        kept = target[target != ignore]
        self.facts["losses"].append({
            "kind": "labels", "classes": int(log_p.shape[1] if log_p.dim() > 1 else log_p.shape[0]), "labels": kept.numel(),
            "numel": target.numel(), "ignore_index": int(ignore), "mean": int(reduction) == 1, "at": place(),
            "min": int(kept.min()) if kept.numel() else None, "max": int(kept.max()) if kept.numel() else None})

    def _log_softmax(self, name, args, kwargs):
        x = args[0]
        if len(self.facts["losses"]) >= MAX_TENSORS or not x.is_floating_point() or x.device.type == "meta" or not x.numel():
            return
        z = torch.logsumexp(x.float(), dim=args[1] if len(args) > 1 else kwargs["dim"])
        z = z[torch.isfinite(z)]
        if z.numel():
            self.facts["losses"].append({"kind": "logits", "dtype": str(x.dtype)[6:], "at": place(),
                                         "logsumexp_mean": float(z.mean()), "logsumexp_max": float(z.abs().max())})

    def _attention(self, name, args, kwargs):
        q, k = args[0], args[1]
        if len(self.facts["attention"]) >= MAX_TENSORS or q.device.type == "meta" or not q.numel() or not k.numel():
            return
        scale = kwargs.get("scale")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        bound = q.float().norm(dim=-1).amax(dim=-1) * k.float().norm(dim=-1).amax(dim=-1) * scale
        head = int(torch.nan_to_num(bound, 0.0, 0.0, 0.0).flatten().argmax())
        one = lambda t: t.reshape(-1, *t.shape[-2:])[head][:512].float()  # noqa: E731
        logits = one(q) @ one(k).T * scale
        logits = logits[torch.isfinite(logits)]
        self._note_attention(name, q.dtype, float(logits.abs().max()) if logits.numel() else 0.0, head % bound.shape[-1])

    def _softmax(self, name, args, kwargs):
        x = args[0]
        dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
        if x.dim() < 3 or dim not in (-1, x.dim() - 1) or x.device.type == "meta" or len(self.facts["attention"]) >= MAX_TENSORS:
            return
        # The largest minus the smallest that is no mask: what saturates a softmax. Masks are -Inf or close to the end of the range.
        kept = x.float()[torch.isfinite(x) & (x.float() > -1e4)]
        if kept.numel():
            self._note_attention(name, x.dtype, float(kept.abs().max()), None)

    def _note_attention(self, name, dtype, logits, head):
        self.facts["attention"].append({"op": name, "dtype": str(dtype)[6:], "logits": logits, "head": head, "at": place()})

    # -- backward, clipping, scaler, optimizer --------------------------------------------------

    def backward(self, original, args, kwargs):
        if self.backward_depth == 0 and kwargs.get("accumulate_grad", True):  # torch.autograd.grad is no training step
            self.looking(self._backward_begins, args)
        self.backward_depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            self.backward_depth -= 1

    def _backward_begins(self, args):
        roots = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
        values = [float(r) for r in roots if isinstance(r, torch.Tensor) and r.numel() == 1]
        device = roots[0].device.type if roots and isinstance(roots[0], torch.Tensor) else "cpu"
        self.event("backward", loss=values[0] if values else None, autocast=bool(self.autocast_on.get(threading.get_ident())),
                   dtype=str(roots[0].dtype)[6:] if roots else "", device=device)

    def autocast(self, region, entered, has_gradients):
        thread = threading.get_ident()
        if not getattr(region, "_enabled", True):
            return
        self.autocast_on[thread] = max(0, self.autocast_on.get(thread, 0) + (1 if entered else -1))
        if entered and len(self.facts["autocast"]) < MAX_TENSORS:
            self.facts["autocast"].append({"device": region.device, "dtype": str(region.fast_dtype)[6:], "at": place(),
                                           "grad": has_gradients, "deprecated": type(region).__module__.startswith(
                                               ("torch.cuda.amp", "torch.cpu.amp"))})

    def clipped(self, parameters, result, max_norm, by):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        with_grad = [p for p in parameters if p.grad is not None]
        self.event("clip", norm=float(result) if isinstance(result, torch.Tensor) else None, max_norm=float(max_norm), by=by,
                   parameters=len(parameters), gradients=len(with_grad), owned=[id(p) for p in with_grad[:64]])

    def before_clip(self, parameters):
        """Was every gradient finite before it was clipped?"""
        stats = [statistics(p.grad) for p in parameters if p.grad is not None]
        self.event("before-clip", finite=all(s is None or s["finite"] == s["numel"] for s in stats), elements=len(stats))

    def before_step(self, optimizer):
        if self.facts["ended"]:  # the script has swallowed our exception
            os._exit(0)
        ordinal = self.ordinals.setdefault(id(optimizer), len(self.ordinals))
        step = self.counts[ordinal] = self.counts.get(ordinal, -1) + 1
        names, parameters = discover.names(optimizer), discover.parameters(optimizer)
        losses = [e["loss"] for e in self.facts["events"] if e["what"] == "backward" and e["loss"] is not None]
        group = optimizer.param_groups[0] if optimizer.param_groups else {}
        found = {"optimizer": type(optimizer).__name__, "ordinal": ordinal, "step": step, "loss": losses[-1] if losses else None,
                 "lr": float(group.get("lr", 0.0)), "parameters": [], "at": place(), "update": None,
                 "owned": [id(p) for p in parameters[:MAX_PARAMETERS]]}
        for name, p in list(zip(names, parameters))[:MAX_PARAMETERS]:
            found["parameters"].append(self._parameter(name, p))
        self.event("step", ordinal=ordinal, step=step)
        self.facts["steps"].append(found)
        self.before[ordinal] = [p.detach().clone() for p in parameters[:MAX_PARAMETERS]]
        self.write(safe(self.facts))

    @staticmethod
    def _parameter(name, p):
        s = statistics(p)
        one = {"name": name, "dtype": str(p.dtype)[6:], "shape": list(p.shape), "numel": p.numel(),
               "rms": (s["sum_sq"] / max(s["finite"], 1)) ** 0.5 if s else None,
               "bad": s["numel"] - s["finite"] if s else 0, "grad": None}
        g = p.grad
        if g is None or g.layout != torch.strided or not (s := statistics(g)):
            return one
        flat = g.detach().flatten()[:SAMPLE].float().abs()
        one["grad"] = {"norm": s["sum_sq"] ** 0.5, "absmax": s["absmax"], "nan": s["nan"], "inf": s["inf"], "numel": s["numel"],
                       "zero": s["zero"], "tiny": int(((flat > 0) & (flat < HALF_NORMAL)).sum()) / max(flat.numel(), 1)}
        return one

    def after_step(self, optimizer):
        ordinal = self.ordinals.get(id(optimizer))
        if (before := self.before.pop(ordinal, None)) is None:
            return
        parameters = discover.parameters(optimizer)
        moved = sum(float((p.detach().double() - b.double()).square().sum()) for p, b in zip(parameters, before)) ** 0.5
        size = sum(float(b.double().square().sum()) for b in before) ** 0.5
        mine = [s for s in self.facts["steps"] if s["ordinal"] == ordinal]
        mine[-1]["update"] = {"moved": moved, "size": size}
        self.facts["events"].append({"what": "stepped", "file": "", "line": 0, "ordinal": ordinal})
        if self.counts[ordinal] + 1 >= self.wanted:
            self.over("steps")
            raise Reached  # and not os._exit: what the script cleans up on its way out is cleaned up


WATCHED = {
    "aten::nll_loss_forward": Look._nll, "aten::nll_loss2d_forward": Look._nll, "aten::_log_softmax": Look._log_softmax,
    "aten::_softmax": Look._softmax,
    "aten::_scaled_dot_product_flash_attention_for_cpu": Look._attention, "aten::_scaled_dot_product_flash_attention": Look._attention,
    "aten::_scaled_dot_product_efficient_attention": Look._attention, "aten::_scaled_dot_product_cudnn_attention": Look._attention,
    "aten::_scaled_dot_product_fused_attention_overrideable": Look._attention,
}


def install(look):
    """Puts the observers where torch calls. The process ends with the look; nothing is taken out again."""
    def over(owner, name, make):
        original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
        setattr(owner, name, functools.wraps(original)(make(original)))
        return getattr(owner, name)

    over(torch.nn.Module, "__call__", lambda f: lambda m, *a, **k: look.call_module(f, m, a, k))
    over(torch.autograd, "_engine_run_backward", lambda f: lambda *a, **k: look.backward(f, a, k))
    _watch_clipping(look, over)
    _watch_scaler(look, over)
    autocast = torch.amp.autocast_mode.autocast

    def entered(f):
        def __enter__(self):
            out = f(self)
            look.looking(look.autocast, self, True, torch.is_grad_enabled())
            return out
        return __enter__

    def left(f):
        def __exit__(self, *a):
            look.looking(look.autocast, self, False, False)
            return f(self, *a)
        return __exit__

    over(autocast, "__enter__", entered)
    over(autocast, "__exit__", left)
    register_optimizer_step_pre_hook(lambda o, a, k: look.looking(look.before_step, o))
    register_optimizer_step_post_hook(lambda o, a, k: look.looking(look.after_step, o))

    def eager(f):
        def compile(*a, **k):
            torch.compiler.set_stance("force_eager")  # what a compiled region computes is not seen from here
            return f(*a, **k)
        return compile

    over(torch, "compile", eager)

    def fetched(f):
        def __next__(self):
            batch = f(self)
            look.looking(_batch, look, batch)
            return batch
        return __next__

    over(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", fetched)


def _batch(look, batch):
    for name, t in tensors_of(batch, "batch"):
        look._data(name, t)


def _watch_clipping(look, over):
    clip = torch.nn.utils.clip_grad

    def norm(f):
        def clip_grad_norm_(parameters, max_norm, *a, **k):
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            look.looking(look.before_clip, parameters)
            out = f(parameters, max_norm, *a, **k)
            look.looking(look.clipped, parameters, out, max_norm, "norm")
            return out
        return clip_grad_norm_

    def value(f):
        def clip_grad_value_(parameters, clip_value, *a, **k):
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            look.looking(look.clipped, parameters, None, clip_value, "value")
            return f(parameters, clip_value, *a, **k)
        return clip_grad_value_

    for name, make in (("clip_grad_norm_", norm), ("clip_grad_value_", value)):
        setattr(torch.nn.utils, name, over(clip, name, make))


def _watch_scaler(look, over):
    scaler = torch.amp.GradScaler

    def told(what):
        def make(f):
            def method(self, *a, **k):
                if self._enabled:
                    owned = [id(p) for p in discover.parameters(a[0])[:64]] if what in ("unscale_", "scaler.step") and a else []
                    look.looking(lambda: look.event(what, scaler=id(self), owned=owned, scale=float(self.get_scale())))
                return f(self, *a, **k)
            return method
        return make

    for name, what in (("scale", "scale"), ("unscale_", "unscale_"), ("step", "scaler.step"), ("update", "update")):
        over(scaler, name, told(what))
