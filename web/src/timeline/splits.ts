// Where a logarithmic axis has its lines. Pure.
import { powersOfTen } from "../history";

const MOST = 5;

// Powers of ten; 1, 2, 5 of each where those are too few; equal steps within less than a decade.
export function logSplits(low: number, high: number): number[] {
  const powers = powersOfTen(low, high);
  if (powers.length > 2) return powers;
  const first = Math.floor(Math.log10(low));
  const finer = [0, 1, 2, 3].flatMap((i) => [1, 2, 5].map((n) => Number(`${n}e${first + i}`))).filter((at) => at >= low && at <= high);
  return finer.length > 2 ? finer : equal(low, high);
}

function equal(low: number, high: number): number[] {
  const rough = (high - low) / MOST;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((one) => one >= rough) ?? rough;
  const from = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.floor(high / step) - from + 1) }, (_, i) => Number(((from + i) * step).toPrecision(6)));
}
