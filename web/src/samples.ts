// For the tests: a tensor and a story of which a test says only what it is about.
import type { Birth, Place, Story, Tensor } from "./document";

export const tensor = (said: Partial<Tensor> = {}): Tensor => ({
  name: "self",
  type: "[2] float32",
  dtype: "float32",
  values: [],
  min: 0,
  max: 1,
  absmax: 1,
  nan: 0,
  inf: 0,
  negInf: 0,
  zero: 0,
  numel: 2,
  rows: "",
  exponents: null,
  ...said,
});

export const place = (said: Partial<Place> = {}): Place => ({
  op: "aten::mul",
  place: "train.py:7",
  line: 7,
  source: "",
  module: "",
  text: "",
  ...said,
});

export const all = <T>(items: T[], more = 0) => ({ items, more });

export function story(birth: Partial<Birth> | null, path: Place[], more = 0): Story {
  const whole: Birth = {
    phase: "forward",
    bornAt: "aten::log",
    where: place(),
    around: null,
    backwardOf: "",
    backwardText: "",
    forward: null,
    userFrame: null,
    absorbedBy: null,
    scalars: [],
    samples: "",
    inputs: all([tensor()]),
    outputs: all([tensor({ name: "", negInf: 1 })]),
    ...birth,
  };
  return {
    step: 3,
    title: "step 3 stopped: loss is NaN.",
    onset: "",
    wayBack: "",
    harmless: false,
    cause: null,
    fix: null,
    births: all(birth ? [whole] : []),
    path: all(path, more),
    sink: "loss",
    repeats: "",
    rerun: "",
    gradients: null,
    buffers: "",
    loss: [],
    gradient: [],
    capsule: "",
    capsuleNote: "",
  };
}
