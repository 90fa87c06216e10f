import { expect, test } from "vitest";
import { kindOf } from "./diff";
import { isLogarithmic, powersOfTen, seriesWords } from "./history";
import { badgeAndDetail, cut, cutLeft, firstSentence, real } from "./words";

test("names with dots do not end a sentence", () => {
  expect(firstSentence("Step 3: gradient of body.0.weight is NaN (rank 0). Weights are clean.")).toEqual([
    "Step 3: gradient of body.0.weight is NaN (rank 0)",
    "Weights are clean.",
  ]);
  expect(firstSentence("no alarm.")).toEqual(["no alarm", ""]);
});

test("a tag splits at its first colon", () => {
  expect(badgeAndDetail("verified on this step: a: b")).toEqual(["verified on this step", "a: b"]);
  expect(badgeAndDetail("likely")).toEqual(["likely", ""]);
});

test("cut texts have at most that length", () => {
  expect(cut("abcdef", 4)).toBe("abc\u2026");
  expect(cutLeft("/a/b/model.py:7", 8)).toBe("\u2026el.py:7");
  expect(cut("abc", 3)).toBe("abc");
});

test("numbers keep four digits and their sign", () => {
  expect(real(-88.722839)).toBe("\u221288.72");
  expect(real("NaN")).toBe("NaN");
  expect(real(null)).toBe("\u2013");
  expect(real(1e-12)).toBe("1e\u221212");
});

test("lines of a diff have kinds", () => {
  expect(["--- a", "+++ b", "@@ -1 +1 @@", "-x", "+y", " z", ""].map(kindOf)).toEqual([
    "file", "file", "hunk", "removed", "added", "same", "same",
  ]);
});

test("a wide positive range is logarithmic", () => {
  expect(isLogarithmic([1, 1000])).toBe(true);
  expect(isLogarithmic([0, 1000])).toBe(false);
  expect(isLogarithmic(["NaN", null])).toBe(false);
});

test("a series is said in words", () => {
  expect(seriesWords("Loss", [1, "Inf", 2])).toBe("Loss of the last 3 steps: 1 to 2, last 2");
  expect(seriesWords("Loss", ["NaN"])).toBe("Loss of the last 1 step: no finite value, last NaN");
});

test("powers of ten lie in their range", () => {
  expect(powersOfTen(0.7, 100)).toEqual([1, 10, 100]);
  expect(powersOfTen(1e-30, 1e30).length).toBeLessThanOrEqual(7);
  expect(powersOfTen(2, 3)).toEqual([]);
});
