import { expect, it } from "vitest";
import { Shown } from "./window";

it("stays within what there is", () => {
  const shown = new Shown({ low: 0, high: 100 });
  shown.choose({ low: 40, high: 60 });
  shown.pan(10);
  expect(shown.range).toEqual({ low: 80, high: 100 });
  shown.pan(-100);
  expect(shown.range).toEqual({ low: 0, high: 20 });
  shown.zoom(100);
  expect([shown.range, shown.isZoomed]).toEqual([{ low: 0, high: 100 }, false]);
});

it("follows a run that grows until somebody zooms", () => {
  const shown = new Shown({ low: 0, high: 10 });
  let calls = 0;
  const end = shown.subscribe(() => ++calls);
  shown.grow({ low: 0, high: 20 });
  expect([shown.range.high, calls]).toEqual([20, 1]);
  shown.choose({ low: 1, high: 5 });
  shown.grow({ low: 0, high: 30 });
  expect([shown.range, calls]).toEqual([{ low: 1, high: 5 }, 2]);
  end();
  shown.choose(null);
  expect([shown.range.high, calls]).toEqual([30, 2]);
});
