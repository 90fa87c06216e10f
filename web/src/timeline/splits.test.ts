import { expect, it } from "vitest";
import { logSplits } from "./splits";

it("has lines for any range", () => {
  expect(logSplits(0.001, 20)).toEqual([0.001, 0.01, 0.1, 1, 10]);
  expect(logSplits(0.3, 12)).toEqual([0.5, 1, 2, 5, 10]);
  expect(logSplits(0.35, 0.62)).toEqual([0.4, 0.5, 0.6]);
  expect(logSplits(0.0401, 0.0489)).toEqual([0.042, 0.044, 0.046, 0.048]);
});
