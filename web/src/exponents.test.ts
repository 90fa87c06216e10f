import { describe, expect, test } from "vitest";
import { axisOf, bars, headroom, height, limitsOf, position } from "./exponents";

const data = (first: number, ...counts: number[]) => ({ first, counts });

test("limits are those of IEEE and torch", () => {
  expect(limitsOf("float16")).toMatchObject({ smallest: -24, normal: -14, largest: 15 });
  expect(limitsOf("bfloat16")).toMatchObject({ smallest: -133, normal: -126, largest: 127 });
  expect(limitsOf("complex64")).toEqual(limitsOf("float32"));
  expect(limitsOf("other")).toBeNull();
});

describe.each([
  ["float16", data(-20, 1, 2, 3)],
  ["float32", data(-149, 1)],
  ["float32", data(-10, 4, 5)],
  ["float32", data(127, 1)],
  ["float64", data(-1074, ...Array<number>(2098).fill(1))],
  ["float64", data(0, 1)],
])("the axis of %s", (dtype, exponents) => {
  const limits = limitsOf(dtype);
  const axis = axisOf(exponents, limits);
  const from = Math.min(limits?.smallest ?? 0, exponents.first);
  const to = Math.max((limits?.largest ?? 0) + 1, exponents.first + exponents.counts.length);

  test("holds data and limits", () => {
    for (const exponent of [from, to]) {
      expect(position(axis, exponent)).toBeGreaterThanOrEqual(0);
      expect(position(axis, exponent)).toBeLessThanOrEqual(1);
    }
  });

  test("never runs backwards", () => {
    const all = Array.from({ length: to - from + 1 }, (_, i) => position(axis, from + i));
    expect(all).toEqual([...new Set(all)].sort((a, b) => a - b));
  });
});

test("bars keep every value", () => {
  const exponents = data(-5, ...Array.from({ length: 101 }, (_, i) => i));
  for (const most of [1, 7, 40, 200]) {
    const made = bars(exponents, most);
    expect(made.length).toBeLessThanOrEqual(most);
    expect(made.reduce((sum, bar) => sum + bar.count, 0)).toBe(5050);
    expect(made.reduce((sum, bar) => sum + bar.powers, 0)).toBe(101);
  }
});

test("one value is seen beside a million", () => {
  expect(height(0, 1e6)).toBe(0);
  expect(height(1, 1e6)).toBeGreaterThan(0.03);
  expect(height(1e6, 1e6)).toBe(1);
});

test("headroom is counted from the largest magnitude", () => {
  expect(headroom(data(-3, 1, 1), limitsOf("float16"))).toBe("a factor of 2^17 below the limit of float16");
  expect(headroom(data(15, 1), limitsOf("float16"))).toBe("the largest magnitudes are at the limit of float16");
  expect(headroom(data(15, 1), null)).toBe("");
});
