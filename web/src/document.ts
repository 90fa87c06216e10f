// What src/show/page_document.cpp makes of a report: every text printable, every list bounded.

export type Real = number | "NaN" | "Inf" | "-Inf" | null;

export interface Bounded<T> {
  items: T[];
  more: number; // in the JSON report
}

export interface Exponents {
  first: number; // counts[0] is of magnitudes from 2^first to below 2^(first+1)
  counts: number[];
}

export interface Tensor {
  name: string;
  type: string;
  dtype: string;
  values: string[];
  min: Real;
  max: Real;
  absmax: Real;
  nan: number;
  inf: number;
  negInf: number;
  zero: number;
  numel: number;
  rows: string;
  exponents: Exponents | null;
}

export interface Place {
  op: string;
  place: string;
  line: number;
  source: string;
  module: string;
  text: string;
}

export interface Around {
  first: number; // number of the first line
  lines: string[];
}

export interface Birth {
  phase: string;
  bornAt: string;
  where: Place;
  around: Around | null;
  backwardOf: string;
  backwardText: string;
  forward: Place | null;
  userFrame: Place | null;
  absorbedBy: Place | null;
  scalars: string[];
  samples: string;
  inputs: Bounded<Tensor>;
  outputs: Bounded<Tensor>;
}

export interface Experiment {
  name: string;
  outcome: string;
  confirms: boolean | null;
}

export interface Cause {
  text: string;
  tag: string;
  proven: boolean;
  experiments: Bounded<Experiment>;
  time: string;
  onsets: { quantity: string; steps: number }[];
}

export interface Fix {
  text: string;
  tag: string;
  verified: boolean;
  diff: string[];
}

export interface BadGradient {
  name: string;
  nan: number;
  inf: number;
  numel: number;
}

export interface Story {
  step: number;
  title: string;
  onset: string;
  wayBack: string;
  harmless: boolean;
  cause: Cause | null;
  fix: Fix | null;
  births: Bounded<Birth>;
  path: Bounded<Place>;
  sink: string;
  repeats: string;
  rerun: string;
  gradients: { text: string; bad: Bounded<BadGradient>; clean: number } | null;
  buffers: string;
  loss: Real[];
  gradient: Real[];
  capsule: string;
  capsuleNote: string;
}

export interface Advisory {
  title: string;
  text: string;
  birth: Birth | null;
  cause: Cause | null;
}

export interface Operation {
  op: string;
  phase: string;
  where: string;
  inputs: string;
  outputs: string;
  growth: Real;
  microBatch: number | null;
  bad: boolean;
}

export interface Named {
  name: string;
  value: string;
}

export interface PageDocument {
  title: string;
  tone: "good" | "warn" | "bad";
  end: string;
  stories: Bounded<Story>;
  warnings: Bounded<{ title: string; text: string }>;
  advisories: Bounded<Advisory>;
  environment: Named[];
  watched: { counters: Named[]; notWatched: Bounded<string> };
  operations: Bounded<Operation>;
}
