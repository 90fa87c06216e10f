import { describe, expect, it } from "vitest";
import { applied, colourRange, extent, joined, marks, NOTHING, ratio, rowsOf, spansDecades, unpacked, used, type WireRun } from "./data";

const columns = (steps: number[], value = 1) => ({
  step: steps,
  last_step: steps,
  last: steps.map(() => value),
  min: steps.map(() => value),
  max: steps.map(() => value),
});

const wire = (steps: number[], replace: boolean, events: WireRun["processes"][0]["events"] = []): WireRun => ({
  name: "a",
  state: "running",
  processes: [{ key: "", series: [{ id: 1, quantity: "loss", optimizer: "SGD", replace, ...columns(steps) }], events }],
});

describe("what came since", () => {
  it("takes the place of the last points", () => {
    expect(joined(columns([0, 1, 2]), columns([2, 3], 5))).toEqual({
      step: [0, 1, 2, 3],
      last_step: [0, 1, 2, 3],
      last: [1, 1, 5, 5],
      min: [1, 1, 5, 5],
      max: [1, 1, 5, 5],
    });
    expect(joined(columns([0]), columns([])).step).toEqual([0]);
  });

  it("is whole where it says so", () => {
    const before = applied(undefined, wire([0, 1, 2, 3], true));
    expect([...applied(before, wire([0, 2], true)).lines.values()][0]?.step).toEqual([0, 2]);
    expect([...applied(before, wire([3, 4], false)).lines.values()][0]?.step).toEqual([0, 1, 2, 3, 4]);
    expect(before.lines.get("/1")?.step).toHaveLength(4);
  });

  it("draws the rates of all groups together", () => {
    const one = wire([0], true);
    one.processes[0]?.series.push({ id: 2, quantity: "learning_rate_3", optimizer: "SGD", replace: true, ...columns([0]) });
    const [, rate] = applied(undefined, one).lines.values();
    expect([rate?.quantity, rate?.label]).toEqual(["learning_rate", "SGD group 3"]);
  });

  it("explains an alarm that was there", () => {
    const first = applied(undefined, wire([], false, [{ kind: "alarm", step: 5, rank: 0, explained: false }]));
    const then = applied(first, wire([], false, [{ kind: "alarm", step: 5, rank: 0, explained: true, op: "aten::log" }]));
    expect(then.events).toEqual([{ kind: "alarm", step: 5, rank: 0, explained: true, op: "aten::log" }]);
  });
});

it("draws events that have a step, once", () => {
  const events = [
    { kind: "start", step: null, rank: 0 },
    { kind: "end", step: 7, rank: 0 },
    { kind: "warning", step: 7, rank: 0, name: "w" },
    { kind: "warning", step: 7, rank: 1, name: "w" },
    { kind: "checkpoint", step: 8, rank: 0 },
  ];
  expect(marks([applied(undefined, wire([], false, events))]).map((one) => one.kind)).toEqual(["warning", "checkpoint"]);
});

it("finds the steps of all lines", () => {
  const of = (steps: number[]) => ({ ...columns(steps), run: "a", label: "", quantity: "loss" });
  expect(extent([of([3, 4]), of([1, 2])])).toEqual({ low: 1, high: 4 });
  expect(extent([])).toEqual({ low: 0, high: 1 });
  expect(spansDecades([of([1])])).toBe(false);
  expect(spansDecades([of([1]), { ...of([1]), max: [100] }])).toBe(true);
  expect(spansDecades([{ ...of([1]), min: [0], max: [100] }])).toBe(false);
});

describe("a map", () => {
  it("is unpacked from base64, the lower byte first", () => {
    const map = { names: ["a"], more: 0, first: 0, last: 1, columns: 3, perOctave: 64, values: btoa("\x01\x00\xff\xff\x00\x80") };
    expect([...unpacked(map)]).toEqual([1, -1, NOTHING]);
  });

  it("has a ratio where both values are known", () => {
    expect([...ratio(Int16Array.of(64, NOTHING, 0), Int16Array.of(128, 1, NOTHING))]).toEqual([-64, NOTHING, NOTHING]);
  });

  it("has colours for what is not rare", () => {
    const values = Int16Array.from({ length: 1000 }, (_, i) => (i === 0 ? -30000 : i));
    expect(colourRange(values)).toEqual([20, 980]);
    expect(colourRange(Int16Array.of(NOTHING))).toEqual([-1, 1]);
  });
});

describe("maps of parameters", () => {
  const map = (names: string[], columns: number, values: number[]) => {
    const bytes = new Uint8Array(Int16Array.from(values).buffer);
    return { names, more: 0, first: 0, last: 9, columns, perOctave: 64, values: btoa(String.fromCharCode(...bytes)) };
  };

  it("has the bits to the limit of each dtype", () => {
    const gradients = map(["a", "b", "c"], 2, [64, NOTHING, 64, 128, 64, 64]);
    expect([...used(gradients, unpacked(gradients), [16, 128, null])]).toEqual([
      64 * -15, NOTHING, 64 * -127, 64 * -126, NOTHING, NOTHING,
    ]);
  });

  it("puts rows of another map in order", () => {
    expect([...rowsOf(["a", "b", "c"], map(["c", "a"], 2, [1, 2, 3, 4]))]).toEqual([3, 4, NOTHING, NOTHING, 1, 2]);
  });
});
