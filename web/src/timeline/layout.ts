// Of every chart, so that the same step lies above itself.
export const LEFT = 64; // pixels left of the first step
export const RIGHT = 14;
