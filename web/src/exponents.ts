// The histogram of an operand's magnitudes by power of two, and the limits of its dtype on the same axis. Pure.
import type { Exponents } from "./document";

export interface Limits {
  name: string;
  smallest: number; // exponent of the smallest subnormal number
  normal: number; // of the smallest normal one
  largest: number; // of the largest
}

const limits = (name: string, smallest: number, normal: number, largest: number): Limits => ({
  name,
  smallest,
  normal,
  largest,
});

const LIMITS: Record<string, Limits> = Object.fromEntries(
  [
    limits("float64", -1074, -1022, 1023),
    limits("float32", -149, -126, 127),
    limits("bfloat16", -133, -126, 127),
    limits("float16", -24, -14, 15),
    limits("float8_e5m2", -16, -14, 15),
    limits("float8_e4m3fn", -9, -6, 8),
  ].map((one) => [one.name, one]),
);
const PARTS: Record<string, string> = { complex64: "float32", complex128: "float64", complex32: "float16" };

export const limitsOf = (dtype: string): Limits | null => LIMITS[PARTS[dtype] ?? dtype] ?? null;

export interface Axis {
  low: number; // exponents drawn evenly, from low up to below high
  high: number;
  least: number; // the whole range of the dtype; what lies outside [low, high) is drawn pressed together
  most: number;
}

const AROUND = 3;
const EVEN = 72; // so many exponents are drawn evenly, whatever the data fill

export function axisOf(exponents: Exponents, limits: Limits | null): Axis {
  const first = exponents.first;
  const end = first + exponents.counts.length;
  const least = Math.min(first, limits?.smallest ?? first) - 1;
  const most = Math.max(end, (limits?.largest ?? end - 1) + 1) + 1;
  if (most - least <= EVEN) return { low: least, high: most, least, most };
  const low = Math.max(least, first - AROUND);
  const high = Math.min(most, end + AROUND);
  return { low, high, least, most };
}

const PRESSED = 0.12; // of the width, at each side that is pressed together

// Where an exponent lies, from 0 to 1.
export function position(axis: Axis, exponent: number): number {
  const left = axis.low > axis.least ? PRESSED : 0;
  const right = axis.most > axis.high ? PRESSED : 0;
  if (exponent < axis.low) return (left * (exponent - axis.least)) / (axis.low - axis.least);
  if (exponent > axis.high) return 1 - (right * (axis.most - exponent)) / (axis.most - axis.high);
  return left + ((1 - left - right) * (exponent - axis.low)) / (axis.high - axis.low);
}

export interface Bar {
  exponent: number; // of its first power of two
  powers: number; // how many it covers
  count: number;
}

// At most `most` bars; several powers of two share one where there are more.
export function bars(exponents: Exponents, most: number): Bar[] {
  const powers = Math.max(1, Math.ceil(exponents.counts.length / most));
  const out: Bar[] = [];
  for (let i = 0; i < exponents.counts.length; i += powers) {
    const counts = exponents.counts.slice(i, i + powers);
    out.push({ exponent: exponents.first + i, powers: counts.length, count: counts.reduce((a, b) => a + b, 0) });
  }
  return out;
}

// Counts differ by orders of magnitude; one value has to be seen beside a million.
export const height = (count: number, largest: number): number =>
  count <= 0 ? 0 : Math.max(0.04, Math.log1p(count) / Math.log1p(largest));

// How far the largest magnitude is from the limit, in words; empty where it is not known.
export function headroom(exponents: Exponents, limits: Limits | null): string {
  if (!limits || !exponents.counts.length) return "";
  const top = exponents.first + exponents.counts.length - 1;
  const above = limits.largest - top;
  if (above <= 0) return `the largest magnitudes are at the limit of ${limits.name}`;
  return `a factor of 2^${above} below the limit of ${limits.name}`;
}
