"""The size of activations by depth, before anything is learned."""

from ..facts import number, slope
from ..registry import check, note, warn

DEPTH, FACTOR, FIT = 6, 1e3, 0.8
EARLY = 300  # steps


@check("P17", "initial-scale", "steps")
def activations(steps):
    """Outputs of layers with weights, in the order they run, or of the blocks of a residual stream, that grow or shrink
    a thousandfold evenly over at least six of them; with the size of weights and first gradients by depth."""
    layers = [
        layer
        for layer in steps.layers
        if layer["weights"] and layer["rms"] and not layer["nan"] + layer["inf"] and layer["class"] != "Embedding"
    ]
    factor, fit = slope([float(layer["rms"]) for layer in layers])
    if len(layers) >= DEPTH and fit >= FIT and not 1 / FACTOR < factor < FACTOR:
        grows = factor > 1
        yield warn(
            f"activations {'grow' if grows else 'shrink'} {factor if grows else 1 / factor:.3g} "
            f"times over {len(layers)} layers, "
            f"{layers[0]['rms']:.3g} at {layers[0]['name']} and {layers[-1]['rms']:.3g} at {layers[-1]['name']}",
            "residual branches scaled by 1/sqrt(2 x layers) and normalised before them"
            if grows
            else "larger initial values (gain of the activation function), residual connections, normalisation",
            steps.at(layers[-1]),
            factor=factor,
            residual=_residual(steps.blocks),
            layers=_by_depth(steps, layers),
        )
        return
    blocks = [b for b in steps.blocks if b["rms"] and not b["nan"] + b["inf"]]
    factor, fit = slope([number(b["rms"]) for b in blocks])
    if len(blocks) >= DEPTH and fit >= FIT and factor > FACTOR:
        yield warn(
            f"the residual stream grows {factor:.3g} times over {len(blocks)} blocks, "
            f"{blocks[0]['rms']:.3g} after {blocks[0]['name']} "
            f"and {blocks[-1]['rms']:.3g} after {blocks[-1]['name']}",
            "the last weights of each branch scaled by 1/sqrt(2 x blocks) at "
            "the start, and normalised before the branch, not after it",
            steps.at(blocks[-1]),
            factor=factor,
            residual=_residual(blocks),
            layers=_by_depth(steps, layers),
        )


def _residual(blocks):
    return [[b["name"], b["rms"]] for b in blocks][:100]


def _by_depth(steps, layers):
    """Size of output, weight and first gradient of each layer, in the order they ran."""
    first = {p["name"]: p["grad"]["rms"] for p in (steps.steps[0]["parameters"] if steps.steps else ()) if p["grad"]}
    return [
        {
            "name": one["name"],
            "output": one["rms"],
            "weight": one["weight_rms"],
            "gradient": first.get(f"{one['name']}.weight"),
        }
        for one in layers
    ][:100]


@check("P17", "initial-scale", "run")
def early(run):
    """A bad step by overflow or exploding gradients within the first 300 steps."""
    for alarm in run.findings:
        if alarm["step"] < EARLY and run.cause(alarm) in ("overflow", "exploding-gradient"):
            yield note(
                f"step {alarm['step']} is early for {run.cause(alarm)}: if a tenth of the learning "
                "rate does not help, it is the "
                "initial values",
                "scale residual branches by 1/sqrt(2 x layers); normalise before them",
                run.at(alarm),
            )
