// The steps before the alarm, in words and for a chart. Pure.
import type { Real } from "./document";
import { counted, real } from "./words";

export const finite = (value: Real): value is number => typeof value === "number";

// Spread over orders of magnitude, all positive: then the scale is logarithmic.
export function isLogarithmic(values: Real[]): boolean {
  const known = values.filter(finite);
  return known.length > 0 && Math.min(...known) > 0 && Math.max(...known) > 100 * Math.min(...known);
}

export function seriesWords(name: string, values: Real[]): string {
  const known = values.filter(finite);
  const range = known.length ? `${real(Math.min(...known))} to ${real(Math.max(...known))}` : "no finite value";
  return `${name} of the last ${counted(values.length, "step")}: ${range}, last ${real(values[values.length - 1] ?? null)}`;
}

// Those from `low` to `high`, at most about six of them.
export function powersOfTen(low: number, high: number): number[] {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first) / 6));
  return Array.from({ length: Math.max(0, Math.floor((last - first) / step) + 1) }, (_, i) => 10 ** (first + i * step));
}
