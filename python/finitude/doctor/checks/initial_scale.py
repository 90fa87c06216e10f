"""The size of activations by depth, before anything is learned."""

from ..facts import slope
from ..registry import check, note, warn

DEPTH, FACTOR, FIT = 6, 1e3, 0.8
EARLY = 300    # steps


@check("P17", "initial-scale", "steps")
def activations(steps):
    """Outputs of layers with weights, in the order they run, that grow or shrink a thousandfold evenly over at least six layers."""
    layers = [layer for layer in steps.layers if layer["weights"] and layer["rms"] and not layer["nan"] + layer["inf"]
              and layer["class"] != "Embedding"]
    if len(layers) < DEPTH:
        return
    factor, fit = slope([float(layer["rms"]) for layer in layers])
    if fit >= FIT and not 1 / FACTOR < factor < FACTOR:
        grows = factor > 1
        yield warn(f"activations {'grow' if grows else 'shrink'} {factor if grows else 1 / factor:.3g} times over {len(layers)} layers, "
                   f"{layers[0]['rms']:.3g} at {layers[0]['name']} and {layers[-1]['rms']:.3g} at {layers[-1]['name']}",
                   "residual branches scaled by 1/sqrt(2 x layers) and normalised before them" if grows else
                   "larger initial values (gain of the activation function), residual connections, normalisation",
                   steps.at(layers[-1]), factor=factor)


@check("P17", "initial-scale", "run")
def early(run):
    """A bad step by overflow or exploding gradients within the first 300 steps."""
    for alarm in run.alarms:
        if alarm["step"] < EARLY and run.cause(alarm) in ("overflow", "exploding-gradient"):
            yield note(f"step {alarm['step']} is early for {run.cause(alarm)}: if a tenth of the learning rate does not help, it is the "
                       "initial values", "scale residual branches by 1/sqrt(2 x layers); normalise before them", run.at(alarm))
