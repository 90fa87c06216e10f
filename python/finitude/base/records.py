"""The dictionaries that the package passes on, key by key: an alarm and all that is in a report, what the engine found
out from a trace. For annotations alone. A key that is not always there is NotRequired (docs/report.schema.json)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal, TypedDict

    from torch import Tensor
    from torch.optim import Optimizer
    from typing_extensions import NotRequired  # part of `typing` from Python 3.11 on

    from .warning_records import AlarmOnset, PolicyDone, StepWarning

    OnAlarm = Literal["stop", "skip", "warn", "raise", "rollback"]
    Level = Literal["gate", "tape", "trace"]

    SinkKind = Literal["loss", "gradient", "parameter", "state", "buffer"]
    Phase = Literal["forward", "backward", "optimizer", "data", "state", "communication", "memory"]
    Confidence = Literal["proven", "likely", "possible"]
    Weights = Literal["clean", "damaged"]
    Rerun = Literal["persistent", "transient", "order-dependent", "not-run"]
    RerunBy = Literal["closure", "rewind", "jump", "restart", "tape", "trace", "none"]
    Where = Literal[
        "window",  # open at `step`
        "skipped",  # the same, of a step that a GradScaler has skipped
        "written",  # by the step just taken
        "search",  # made by a search along a line
        "earlier",  # by an unknown step
        "overflowed",  # by an unknown step, and no worse than Inf
        "start",  # there before the first step
        "swallowed",  # an overflow that reached no sink
        "dropped",  # in a window that the script has dropped
        "late",  # reported by a device when the program had continued
        "memory",  # asked is what nobody had written
    ]
    InPlace = Literal["rewind", "jump"]
    Real = float | str | None  # JSON has no NaN and no Inf: they are texts; None: not known

    class SinkName(TypedDict):
        kind: SinkKind
        name: str

    Sink = tuple[SinkKind, str, Tensor]  # (kind, name, value) of something bad
    FromFile = Mapping[str, Any]  # a record that was read from a file: any key may be missing

    class Figures(TypedDict):
        """Of one tensor (_native.statistics). min, max, absmax and sum_sq are of its finite values."""

        nan: int  # elements
        inf: int  # elements, of both signs
        pos_inf: int
        neg_inf: int
        zero: int
        numel: int
        min: float
        max: float
        absmax: float
        sum_sq: float

    class Exponents(TypedDict):
        """How many values have a magnitude from 2^(first + i) to below 2^(first + i + 1)."""

        first: int
        counts: list[int]

    class Statistics(TypedDict):
        """Of one tensor as an operation saw it, in a report. min, max, absmax and mean are over its finite values."""

        shape: list[int]
        dtype: str  # without "torch."
        nan: int  # elements
        inf: int  # elements, of both signs
        numel: int
        arg: NotRequired[str | None]  # name of the operation's argument
        min: NotRequired[Real]
        max: NotRequired[Real]
        absmax: NotRequired[Real]
        mean: NotRequired[Real]
        pos_inf: NotRequired[int]
        neg_inf: NotRequired[int]
        zero: NotRequired[int]
        rows: NotRequired[list[int]]  # of dimension 0, that are not finite
        exponents: NotRequired[Exponents]  # of an operand of the culprit
        # In a trace:
        text: NotRequired[str]  # name of the memory
        constant: NotRequired[bool]  # a number that the program wrote down
        sum_sq: NotRequired[Real]  # of the finite values
        storage: NotRequired[int]  # number of the memory
        begin: NotRequired[int]  # bytes of it
        end: NotRequired[int]

    class Scalar(TypedDict):
        """An argument of an operation that is no tensor."""

        text: str  # as printed
        arg: NotRequired[str | None]

    class Place(TypedDict):
        """An operation and the line of the user's code that it belongs to."""

        op: str
        file: NotRequired[str]
        line: NotRequired[int]  # 0: not known
        source: NotRequired[str]
        module: NotRequired[str]
        text: NotRequired[str]  # on a path: what happened here
        inputs: NotRequired[list[Statistics]]

    class Frame(TypedDict):
        file: str  # absolute
        line: int
        source: str
        function: str

    class Datum(TypedDict):
        """What came of taking the guilty sample out of the data set again."""

        how: Literal["stored", "made", "read", "unknown"]
        text: str
        sample: NotRequired[int]  # its index in the data set
        field: NotRequired[str]  # the expression that holds it, or where in the sample it is
        file: NotRequired[str]  # absolute
        line: NotRequired[int]
        function: NotRequired[str]
        source: NotRequired[str]

    class Around(TypedDict):  # a line of a file with its neighbours
        first: int  # number of the first of them
        source: str

    class Birth(TypedDict):
        """An operation with finite inputs whose output is not finite, or what is known in place of one."""

        phase: Phase
        op: str  # innermost, without overload; "": born outside of the traced operations
        file: str  # absolute; "": not known
        line: int  # 0: not known
        source: str  # that line
        expression: NotRequired[str]  # of that line, where it has several of the operation
        module: str
        node: str  # of a backward birth: the autograd node
        inputs: list[Statistics]
        outputs: list[Statistics]
        rows: list[int]  # of what rows_in says
        user_frame: NotRequired[Frame | None]  # the innermost of the script, where the line is a package's
        forward: NotRequired[Place]  # of a backward birth: the forward operation of its node
        name: NotRequired[str]  # of data, state, memory: what carried it; of an optimizer: what it wrote
        absorbed_by: NotRequired[Place]  # of a backward birth: the select that hid the forward value
        scalars: NotRequired[list[Scalar]]
        rows_in: NotRequired[Literal["batch", "output"]]
        rows_are_samples: NotRequired[bool]  # False: that is impossible
        rows_of: NotRequired[int]  # samples that the batch has, where rows are those of the batch
        samples: NotRequired[list[int]]  # for each of rows: its index in the data set
        datum: NotRequired[Datum]
        exchanges: NotRequired[list[dict[str, Any]]]  # that it came through, or that were given a bad value
        around: NotRequired[Around]  # of the culprit, where the file could be read

    _From = TypedDict("_From", {"from": Real})

    class Onset(_From):
        """What grew over the steps before."""

        quantity: Literal["loss", "gradient", "learning-rate"]
        step: int  # the last before it grew
        steps: int  # from there to the last good step
        to: Real
        factor_per_step: Real
        at_most: NotRequired[bool]  # True: it already grew at the oldest step that was kept

    class Experiment(TypedDict):
        name: str
        outcome: str
        confirms: NotRequired[bool]  # the outcome is what the cause predicts
        rows: NotRequired[list[int]]  # of the batch, that were replaced
        rows_of: NotRequired[int]  # samples that the batch has
        samples: NotRequired[list[int]]  # for each of rows: its index in the data set

    _Class = TypedDict("_Class", {"class": str})

    class Cause(_Class):
        confidence: Confidence
        text: str
        experiments: list[Experiment]
        onsets: NotRequired[list[Onset]]
        tried_seconds: NotRequired[float]  # what the experiments with the whole step took
        budget_seconds: NotRequired[float]  # what they might have taken
        out_of_time: NotRequired[bool]  # True: some were skipped for that
        rule: NotRequired[str]  # the user's own that found it

    class Edit(TypedDict):
        """How the engine changed the captured step to try a fix (src/show/findings.cpp)."""

        arg: str | int  # of the operation
        code: str
        op: NotRequired[str]
        is_number: NotRequired[bool]
        file: NotRequired[str]
        line: NotRequired[int]
        source: NotRequired[str]
        module: NotRequired[str]
        span: NotRequired[list[int]]  # line, column, end line, end column

    class Fix(TypedDict):
        text: str
        verified: bool  # tried on the whole captured step
        file: str
        line: int
        tried: NotRequired[str]  # the change that was made to the captured step
        outcome: NotRequired[str]  # what came of it
        diff: NotRequired[str]  # of the source line
        edit: NotRequired[Edit]  # until patch.add_diff has made the diff of it

    class BadTensor(TypedDict):
        name: str
        nan: int  # elements
        inf: int
        numel: int

    class BadBuffer(BadTensor):
        put_back: bool  # it holds again what it held before the step

    class BadGradients(TypedDict):
        bad: list[BadTensor]
        clean: int  # gradients that are finite

    class History(TypedDict):
        """Of the last good steps before the alarm, oldest first."""

        loss: list[Real]
        grad_absmax: list[Real]

    class Advisory(TypedDict):
        kind: str
        step: int | None
        text: str
        births: list[Birth]
        cause: Cause | None
        rank: NotRequired[int]
        capsule: NotRequired[str]
        last_step: NotRequired[int]  # of `times` steps, whose first is `step`
        times: NotRequired[int]

    class Alarm(TypedDict):
        step: int  # calls of `step` of that optimizer before this one
        micro_batch: int
        rank: int
        host: NotRequired[str]  # name of its machine, where that is another one; "" where it is not said
        optimizer: str  # name of its class
        sink: SinkName
        weights: Weights
        births: list[Birth]  # births[0] is the culprit
        rerun: Rerun
        rerun_by: RerunBy
        rerun_verified: bool  # loss and gradients of the second run have the bits of the first
        rerun_text: str
        cause: Cause
        fix: Fix | None
        capsule: str | None  # path of the folder
        harmless: bool  # only the loss is bad; every gradient is finite
        text: str  # what was found, in one sentence
        loss: Real
        path: list[Place]  # propagation from births[0] to the sink
        level: Level
        policy: OnAlarm
        history: History
        action: NotRequired[str]  # what was done with the step, in words
        growth: NotRequired[float | None]  # of a parameter's magnitude since the first step, the largest factor
        onset: NotRequired[AlarmOnset | None]  # since when the training was on its way to this step
        gradients: NotRequired[BadGradients]
        saved: NotRequired[dict[str, Any]]  # what the program gave to finitude.save, by name
        saved_values: NotRequired[str]  # the file with the values of those that asked for it
        last_good: NotRequired[dict[str, Any] | None]  # "checkpoint": path, "step"
        capsule_pending: NotRequired[bool]  # True: it is being written in the background
        capsule_redacted: NotRequired[bool]  # True: it holds no values
        repeat_of: NotRequired[int]  # the step whose alarm is taken to be the same finding
        buffers: NotRequired[list[BadBuffer]]
        # While it is under way, and in no report:
        optimizer_ordinal: NotRequired[int]  # number of the optimizer
        advisory: NotRequired[Advisory]  # what the second run is to explain is no alarm
        unproven: NotRequired[str]  # what is known where the second run shows no birth

    BadWindow = tuple[Optimizer | None, Alarm, Sequence[Sink]]

    class Failure(TypedDict):
        """Of Finitude itself."""

        where: str  # file, line and function of it
        text: str
        step: int  # steps that had been judged by then
        times: int

    class Watched(PolicyDone):
        optimizers: int
        steps: int
        backward_calls: int
        gradients_scanned: int
        scaler_skips: int
        handled_by_script: int
        not_watched: NotRequired[list[str]]  # what, and why
        unapplied: NotRequired[int]  # windows in a row at the end that no step applied
        zero_gradients: NotRequired[int]  # applied steps in a row at the end with only zero gradients
        ranks: NotRequired[int]  # world size

    class Process(TypedDict):
        pid: int
        start: int  # clock ticks since the machine began; 0: not known
        machine: str  # this boot of it and the namespace of process numbers; "0": not known

    class Operation(TypedDict):  # of a trace
        op: str
        phase: Phase
        micro_batch: int
        file: str
        line: int
        module: str
        inputs: list[Statistics]
        outputs: list[Statistics]
        depth: int  # operations that enclose it
        scalars: NotRequired[list[Scalar]]
        growth: NotRequired[Real]  # absmax of the outputs over absmax of the inputs
        view: NotRequired[bool]  # True: computes nothing
        allocates: NotRequired[bool]  # True: the outputs hold what was there before
        random: NotRequired[bool]  # True: draws from a generator

    class Trace(TypedDict):
        ops: list[Operation]
        truncated: NotRequired[bool]  # True: a dump that does not have all that was asked for

    class Document(TypedDict):
        """A report."""

        schema: Literal[1]
        outcome: Literal["clean", "alarm", "unwatched", "running", "killed"]
        watched: Watched
        alarms: list[Alarm]
        alarms_unlisted: NotRequired[int]  # past those that a report holds
        advisories: list[Advisory]
        warnings: list[StepWarning]
        reason: NotRequired[str]  # of an outcome that is not "clean"
        finitude: NotRequired[str]  # versions
        torch: NotRequired[str]
        python: NotRequired[str | None]  # None: a C++ program
        by_watch: NotRequired[bool]  # the program called finitude.watch without `finitude run`
        command: NotRequired[list[str]]
        script: NotRequired[str]  # absolute path
        started: NotRequired[str]  # RFC 3339
        seconds: NotRequired[float]
        failures: NotRequired[list[Failure]]
        unwatched_from: NotRequired[int | None]  # the step from which on nothing was watched
        trace: NotRequired[Trace]
        under_way: NotRequired[Process]  # who writes it, while the run continues

    class TapePlayed(TypedDict):
        """How a tape that was issued again came out (src/bindings/analyse_torch.cpp)."""

        why_not: str  # it says nothing of the step; "": it does. Then the rest is there
        verified: NotRequired[bool]
        verdict: NotRequired[Literal["persistent", "order-dependent"]]
        bad_again: NotRequired[bool]
        refused: NotRequired[list[str]]  # operators that could not be recorded

    class Start(TypedDict):
        """Of memory that the program began with."""

        unwritten: bool
        birth: Birth  # the call that made it

    class Findings(TypedDict, total=False):
        """What the engine found out from a trace. Of a tape that does not play only `tape`; no birth: only `births`."""

        births: list[Birth]
        cause: Cause
        fix: Fix | None
        path: list[Place]
        micro_batch: int  # of births[0]
        is_overflow: bool  # finite operands left the range of the format, whatever class the cause has; missing: no
        came_from: Literal["Python", "NaN", "Inf"]  # CameFrom in src/explain/finding.h; a number: NaN, Inf
        clamps_divisor: Literal["rule", "edit"]  # that is the fix of a division, in whose words; missing: it is not
        absorbed: list[Birth]  # that reached no sink
        after_backward: list[int]  # indices of births in what the script makes of the gradients
        num_ops: int
        truncated: bool  # the trace
        ops: list[Operation]  # where they were asked for
        tape: TapePlayed
        start: Start
        carried: list[str]  # names of memory that the second run found as the first had left it, and that had a part
        samples: list[Any]  # for each batch of the step: indices in the data set
        memory: str  # kind of what nobody had written (first_values.py)
        by_chance: bool  # the step is finite in this run; memory that nobody had written decides
        guarded: Literal["finite", "bad"]  # a guard zone was damaged; how the step came out with them

    class LossNote(TypedDict):
        """A loss of an open window (src/bindings/windows_torch.cpp)."""

        serial: int  # counts all of them
        value: float
        sum: int  # its bits
        bad: bool  # not finite, and no step has answered for it
        answered: bool
        grad_bad: bool
        micro_batch: int
        gradients_were_bad: bool  # before its backward
        owned: bool  # by a parameter of this optimizer

    class Window(TypedDict):
        """The step of an optimizer that is open (_native.window)."""

        step: int
        ordinal: int  # number of the optimizer
        backwards: int
        norm_overflow: bool
        norm_in_float64: float
        norm_place: tuple[str, int]  # file, line
        laundered: int
        dropped: int
        written_bad: bool
        vanished: bool  # every gradient has become zero
        on_device: bool
        marks: list[int]  # for each parameter, GradMark::State
        losses: list[LossNote]

    class WindowVerdict(TypedDict):
        """What an open window is (_native.window_verdict)."""

        kind: Literal["nothing", "alarm", "handled-by-script"]
        sink: SinkKind
        is_grad_output: bool
        harmless: bool
        micro_batch: int
        times: int
        norm_overflow: bool

    class Late(TypedDict):
        """What a device reported of a step that the program has left behind."""

        loss: str  # as float.hex has it
        gradients: list[list[int]]  # [index, NaN, Inf] of each that is bad

    class Fingerprint(TypedDict, total=False):
        """What a second run has to come to (incident.fingerprint, or incident.late_fingerprint: `late` alone)."""

        losses: list[int]  # their bits
        generator: int | None  # checksum of torch's state; None: not compared
        gradients: list[int] | None  # checksums; None: not compared
        start: list[Any]  # [kind, name, checksum] of what was bad before the first step
        raised: list[int] | None  # checksums of what the script's own exception is about; None: not compared
        late: Late
