"""A second run in place is rehearsed in a copy of the process first, which is forked for it: up to the step, without
the backward pass.

A program can be put back to where the window began only as far as a snapshot knows it. What its objects carry (a list
that batches are taken out of, a count of steps that are left, a batch whose parts were popped) is as the first run left
it, and a loop that asks for that may end, or raise, instead of coming to the step again. There is no way back from
there: the training would be over. In the copy it costs nothing. Nor does what a run with other data would draw from
objects that nothing sets back: the losses show it. What the copy changes dies with it; it has files of its own, and
ends before it would reach another process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import math
import os
import resource
import select
import shutil
import signal
import stat
import sys
import tempfile
import time
import warnings

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import _native
from ..base._places import is_library
from ..base.kinds import is_a
from ..base.own_child import OwnChild
from ..program import optimizer_members, signals, step_wrapper
from . import paths
from .known_libraries import EXCHANGES, REACHES, UNKNOWN
from .paths import MAX_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType
    from typing import Any, NoReturn

    from ..base.types import Ledger, Optimizer

BACK, OTHER, ASTRAY = "back", "other", "astray"  # besides EXCHANGES and UNKNOWN
SHORTEST, LONGEST = 10.0, 60.0  # seconds that are waited, once if in vain
_PR_SET_PDEATHSIG = 1

_result_fd: Any = None  # in the copy: where what came of it is written
_of: Any = None  # in the copy: the Rehearsal
# In the process itself, while it forks, and in the copy from then on: (its number, what the copy is to know).
forking: Any = None
_off = False  # one did not end, or none is wanted: no more is tried


def is_under_way() -> bool:
    """Is this process the copy? What it knows is set in the copy alone: a fork may be refused, or be interrupted."""
    global _result_fd, _of
    if forking is not None and _result_fd is None and os.getpid() != forking[0]:
        _, _result_fd, _of, paths.of_copy = forking
    return _result_fd is not None


def off() -> None:
    """None is tried from here on."""
    global _off
    _off = True


def came_back(optimizer: Optimizer, *_: Any) -> None:
    """An optimizer steps. In the copy that is what it was to come to, or it has gone another way."""
    if is_under_way():
        end(*(_of.compared() if any(optimizer is o for o in _of.expected) else (ASTRAY,)))


def end(outcome: str, why: str = "") -> NoReturn:
    """In the copy: that came of it. Does not return."""
    global _result_fd
    fd, _result_fd = _result_fd, -1
    if fd == -1:  # met again on the way out
        _exit(0)
    found = {"outcome": outcome, "why": why}
    try:
        if outcome in (ASTRAY, OTHER):
            found["counted"] = _of.ledger.counted()
        _of.ledger.put_back()  # memory that it shares with other processes
        _of.put_locks_back()
    finally:  # what is held is not let go of: files would be those of the process again
        try:
            _write(fd, json.dumps(found).encode())
        finally:  # the process itself may be gone
            _exit(0)


_exit, _write = os._exit, os.write  # a second run and the program may come to have others


class Rehearsal:
    """expected: the optimizers that may step next. losses: what each loss of the window was, or None where that does
    not show it. blame() -> true where it is known why they differ. drawn() -> why the data is other than in
    the first run, or ""; named() -> names that have other values. is_back() -> of a program without an optimizer, which
    is to come to a call of the engine: is it that call?"""

    def __init__(
        self,
        expected: Sequence[Optimizer],
        optimizers: Sequence[Optimizer],
        ledger: Ledger,
        losses: list[float] | None,
        blame: Callable[[], Any],
        drawn: Callable[[], str],
        named: Callable[[], Iterable[str]],
        is_back: Callable[[], bool] | None = None,
    ):
        self.expected, self.optimizers, self.ledger, self.losses, self.is_back = (
            expected,
            optimizers,
            ledger,
            losses,
            is_back,
        )
        self._blame, self._drawn, self._named = blame, drawn, named
        self._seen, self._before = [], []  # losses; what names held before any gradient did
        self._locks = []  # in the copy: (what all processes lock together, how often this one held it)
        self._took_gradients = False  # the program asked for some (`autograd.grad`), of which losses may be made

    def hold(self, frame: FrameType, seconds_per_step: float) -> tuple[str, Sequence[Any], str] | None:
        """None in the copy. In the process itself (what came of it, what it had counted: see Ledger.down, why)."""
        if why := _why_not(self.optimizers):
            return why, (), ""
        try:
            folder = tempfile.mkdtemp(prefix="finitude-")
        except OSError:  # no room for what it would write
            return UNKNOWN, (), ""
        try:
            return self._forked(folder, frame, min(LONGEST, SHORTEST + 10 * seconds_per_step))
        except Exception:  # such as what an audit hook of the program raises: it does not fork
            if is_under_way():
                end(UNKNOWN)
            return UNKNOWN, (), ""
        finally:
            if not is_under_way():
                paths.take_away_made(folder)

    def _forked(self, folder: str, frame: FrameType, limit: float) -> tuple[str, Sequence[Any], str] | None:
        global forking
        child, own, (reader, writer) = None, OwnChild(), os.pipe2(os.O_CLOEXEC)
        try:
            with signals.later():  # one that came before the number is kept would leave the copy behind
                forking = os.getpid(), writer, self, folder  # known before handlers of a fork are called
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter(
                            "ignore"
                        )  # of threads: what they hold is waited for no longer than said below
                        child = os.fork()
                except (
                    SystemExit,
                    KeyboardInterrupt,
                    GeneratorExit,
                ) as refused:  # of an audit hook: signals are held back here
                    raise OSError(errno.EPERM, f"os.fork raised {type(refused).__name__}") from None
                finally:
                    if not is_under_way():
                        forking = None
                        os.close(writer)
                if child == 0:
                    try:
                        self._become_a_copy(reader, frame)
                    except BaseException:
                        end(UNKNOWN)
                own.started(child)
            return None if child == 0 else _read(reader, limit)
        finally:
            if not is_under_way():
                os.close(reader)
                _end_copy(child)
                own.ended()

    # -- in the copy -----------------------------------------------------------------------------

    def _become_a_copy(self, reader, frame):
        os.close(reader)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signals.let_go()  # it ends by those that it is sent, as the program would
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _own_files()
        if (kind := getattr(sys.modules.get("multiprocessing.synchronize"), "SemLock", None)) is not None:
            self._locks = [(it._semlock, it._semlock._count()) for it in _native.instances((kind,))]
        torch.set_num_threads(1)  # it has no other
        torch.autograd._engine_run_backward = self._no_backward  # type: ignore[assignment]
        if step_wrapper.hooks:
            _own_hooks()
        register_optimizer_step_pre_hook(came_back)  # of one that is not watched
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:  # its workers are another process's
            loader._MultiProcessingDataLoaderIter._shutdown_workers = lambda *_: None
        for module, name, methods, outcome in REACHES:
            kind = getattr(sys.modules.get(module), name, None)
            for method in methods if kind is not None else ():
                if hasattr(kind, method):
                    setattr(kind, method, lambda *_, _o=outcome, **__: end(_o))
        for name in ("read", "readv"):
            setattr(os, name, _not_of_others(getattr(os, name)))
        _end_where_it_returns(frame)

    def _no_backward(
        self, tensors, gradients=None, retain=False, create=False, inputs=(), *_, accumulate_grad=False, **__
    ):
        if not self._before:
            self._before = [v for v in _in_names().values() if is_a(v, torch.Tensor)]
        if self.is_back is not None:
            self._seen.extend(t.detach() for t in tensors)
            end(*(self.compared() if self.is_back() else (ASTRAY,)))
        if not accumulate_grad:
            self._took_gradients = True
        else:
            self._seen.extend(t.detach() for t in tensors)
            for leaf in inputs or optimizer_members.leaves_of(tensors):  # which the program may read
                if leaf.grad is None:
                    leaf.grad = torch.zeros_like(leaf)
        return tuple(torch.zeros_like(i) if isinstance(i, torch.Tensor) else None for i in inputs)

    def put_locks_back(self):
        """The process itself holds them as it did."""
        for lock, count in self._locks:
            try:
                for _ in range(lock._count() - count):
                    lock.release()
                for _ in range(count - lock._count()):
                    lock.acquire(False)
            except (AssertionError, ValueError, OSError):  # of another thread
                continue

    def compared(self) -> tuple[str, str]:
        """(what came of it, why). Of several losses the later ones may be made of gradients, which there are none of
        here; so may be what has come to have a name since."""
        try:
            if self._blame():
                return BACK, ""  # the second run itself is to find out
            if self._took_gradients:
                return (OTHER, why) if (why := self._drawn()) else (BACK, "")
            if (
                self.losses
                and len(self.losses) == len(self._seen)
                and self._seen[0].numel() == 1
                and not _is_alike(self._seen[0].item(), self.losses[0])
            ):
                return OTHER, ""
            if why := self._drawn():
                return OTHER, why
            now, before = _in_names(), {id(v) for v in self._before}
            names = [n for n in self._named() if id(now.get(n)) in before]
            return (OTHER, f"{', '.join(names[:3])} came out with other values") if names else (BACK, "")
        except Exception:
            return BACK, ""


def _in_names():
    """{name: value} of the user's frames, the inner ones first."""
    found = {}
    for frame in optimizer_members.user_frames():
        found = {**optimizer_members.names_of(frame), **found}
    return found


def _is_alike(a, b):
    """But for what the number of threads changes."""
    if isinstance(a, complex) or not (math.isfinite(a) and math.isfinite(b)):
        return isinstance(a, complex) or a == b or a != a and b != b
    return abs(a - b) <= 0.01 * max(abs(a), abs(b)) + 1e-6


def _why_not(optimizers):
    # A kernel's copy would speak to the notebook as well; a GPU is of one process.
    if _off or "ipykernel" in sys.modules or torch.cuda.is_available() and torch.cuda.is_initialized():
        return UNKNOWN
    for optimizer in optimizers:
        for tensor in (*optimizer_members.parameters(optimizer), *(b for _, b in optimizer_members.buffers(optimizer))):
            if tensor.is_shared():
                return UNKNOWN
    return UNKNOWN if optimizer_members.others_run_user_code() else ""  # a thread of the program's own it may wait for


def _end_copy(child):
    """child: None where there is none."""
    if child is not None:
        with contextlib.suppress(OSError):  # the program has waited for it
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _read(reader, limit):
    """What the copy writes, up to its end."""
    until, text = time.monotonic() + limit, b""
    while (left := until - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        part = os.read(reader, 1 << 16)
        if not part:
            break
        text += part
    else:
        off()
    try:
        found = json.loads(text)
        return found["outcome"], found.get("counted", ()), found["why"]
    except ValueError:
        return UNKNOWN, (), ""


# -- files of the copy, and its end ----------------------------------------------------------------


def _own_files():
    """The copy's files keep their positions, and move alone; what it writes is its own."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number <= 2 or not _is_ordinary(number):
            continue
        try:
            how, here = fcntl.fcntl(number, fcntl.F_GETFL), os.lseek(number, 0, os.SEEK_CUR)
            path = f"/proc/self/fd/{number}"
            if how & os.O_ACCMODE == os.O_RDONLY:
                own = os.open(path, os.O_RDONLY)
            else:
                own, size = os.memfd_create("finitude"), os.fstat(number).st_size
                if how & os.O_ACCMODE == os.O_WRONLY or size > MAX_BYTES:
                    os.ftruncate(
                        own, size
                    )  # nobody reads it, or it is too large: as long, of zeros that take no memory
                else:
                    with open(path, "rb") as source, open(own, "wb", closefd=False) as target:
                        shutil.copyfileobj(source, target)
            os.lseek(own, here, os.SEEK_SET)
            os.dup2(own, number)
            os.close(own)
        except FileNotFoundError:  # it is in no folder, and memory of Finitude
            continue


def _is_ordinary(number):
    try:
        return stat.S_ISREG(os.fstat(number).st_mode)
    except OSError:  # that of the list itself
        return False


def _not_of_others(read):
    """What is taken out of a pipe or a socket is missed by the process itself."""

    def reads(number, *args):
        mode = os.fstat(number).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            end(EXCHANGES)
        return read(number, *args)

    return reads


def _own_hooks():
    """torch walks over the hooks there are: where the engine's is not the last, one more in that dict would end it."""
    optimizers: Any = torch.optim.optimizer
    optimizers._global_optimizer_pre_hooks = optimizers._global_optimizer_pre_hooks.copy()


def _end_where_it_returns(frame):
    """The program's outermost frame: it has ended then, or something it raised has ended it."""
    outermost = None
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            outermost = frame
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
                break
        frame = frame.f_back

    def watch(_, event, __):
        if event == "return":
            end(ASTRAY)
        return watch

    if outermost is not None:
        outermost.f_trace, outermost.f_trace_lines = watch, False
        sys.settrace(lambda *_: None)
