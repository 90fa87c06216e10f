// What python/finitude/live/document.py hands out, and what it adds up to. Pure.

export type Value = number | null;

export interface Columns {
  step: number[];
  last_step: number[];
  last: Value[];
  min: Value[];
  max: Value[];
}

export interface WireSeries extends Columns {
  id: number;
  quantity: string;
  optimizer: string;
  replace: boolean; // whole; else from its first step on
}

export interface Happened {
  kind: string;
  step: number | null;
  rank: number;
  optimizer?: string;
  text?: string;
  what?: string;
  name?: string;
  verdict?: string;
  since?: number; // the step of the onset
  cause?: string;
  op?: string;
  file?: string;
  line?: number;
  explained?: boolean;
  time?: string;
}

// The quantity that grew before an alarm, from some steps before its onset on.
export interface Strip {
  step: number; // of the alarm
  since: number;
  from: number; // the first step that is shown
  quantity: string;
  name: string; // of a parameter; empty: of the optimizer
  optimizer: string;
  at: number[];
  values: number[];
}

export interface WireProcess {
  strips?: Strip[];
  key: string;
  series: WireSeries[];
  events: Happened[];
  parameters?: number;
  trouble?: string;
}

export interface WireRun {
  settings?: Record<string, string>;
  name: string;
  state: string;
  processes: WireProcess[];
}

export interface ParameterMap {
  names: string[];
  more: number;
  first: number;
  last: number;
  columns: number;
  perOctave: number;
  values: string; // 16-bit numbers, base64
}

export interface OptimizerMaps {
  optimizer: string;
  exponents?: (number | null)[]; // of each gradient's dtype: of the first power of two that is too large for it
  gradient_absmax: ParameterMap;
  weight_absmax: ParameterMap;
  update_ratio?: ParameterMap;
}

export interface Line extends Columns {
  run: string;
  label: string;
  quantity: string;
}

export interface Run {
  name: string;
  state: string;
  lines: Map<string, Line>;
  events: Happened[];
  strips: Strip[];
  settings: Record<string, string>;
  trouble: string;
}

const COLUMNS = ["step", "last_step", "last", "min", "max"] as const;
const MOST_EVENTS = 20000;
const MOST_STRIPS = 8;

// The points from `added.step[0]` on take the place of those that were there.
export function joined(before: Columns, added: Columns): Columns {
  const first = added.step[0];
  if (first === undefined) return before;
  let at = before.step.length;
  while (at > 0 && (before.step[at - 1] ?? 0) >= first) --at;
  const out = {} as Record<string, unknown>;
  for (const key of COLUMNS) out[key] = [...before[key].slice(0, at), ...added[key]];
  return out as unknown as Columns;
}

// The run with what came since. The lines that changed are new objects.
export function applied(before: Run | undefined, wire: WireRun): Run {
  const lines = new Map(before?.lines);
  const events = [...(before?.events ?? [])];
  const strips = new Map((before?.strips ?? []).map((one) => [one.step, one]));
  let trouble = "";
  for (const process of wire.processes) {
    if (process.trouble) trouble = process.trouble;
    for (const one of process.series) {
      const key = `${process.key}/${one.id}`;
      const old = lines.get(key);
      const columns = one.replace || !old ? one : joined(old, one);
      const group = /^learning_rate_(\d+)$/.exec(one.quantity)?.[1]; // of a further parameter group
      const label = [process.key, one.optimizer, group && `group ${group}`].filter(Boolean).join(" ");
      lines.set(key, { ...pick(columns), run: wire.name, label, quantity: group ? "learning_rate" : one.quantity });
    }
    for (const one of process.events) add(events, one);
    for (const one of process.strips ?? []) strips.set(one.step, one);
  }
  return {
    name: wire.name,
    state: wire.state,
    lines,
    events: events.slice(-MOST_EVENTS),
    strips: [...strips.values()].slice(-MOST_STRIPS),
    settings: wire.settings ?? before?.settings ?? {},
    trouble,
  };
}

const pick = ({ step, last_step, last, min, max }: Columns): Columns => ({ step, last_step, last, min, max });

// An alarm that is explained takes the place of the same one before it was.
function add(events: Happened[], one: Happened) {
  if (one.kind === "alarm" && one.explained) {
    const at = events.findLastIndex(
      (other) => other.kind === "alarm" && !other.explained && other.step === one.step && other.rank === one.rank,
    );
    if (at >= 0) {
      events[at] = one;
      return;
    }
  }
  events.push(one);
}

export const DRAWN = ["alarm", "warning", "checkpoint", "skip", "rollback"];

// Those that have a place in a chart, and are not one more of the kind at that step.
export function marks(runs: Run[]): Happened[] {
  const seen = new Set<string>();
  return runs
    .flatMap((run) => run.events)
    .filter((one) => {
      if (one.step === null || one.step < 0 || !DRAWN.includes(one.kind)) return false;
      const key = `${one.kind} ${one.step} ${one.name ?? ""} ${one.what ?? ""}`;
      return !seen.has(key) && seen.add(key);
    });
}

export interface Extent {
  low: number;
  high: number;
}

export function extent(lines: Line[]): Extent {
  let low = Infinity;
  let high = -Infinity;
  for (const line of lines) {
    low = Math.min(low, line.step[0] ?? Infinity);
    high = Math.max(high, line.last_step[line.last_step.length - 1] ?? -Infinity);
  }
  return low <= high ? { low, high: Math.max(high, low + 1) } : { low: 0, high: 1 };
}

// Logarithmic where that shows more: everything positive, and more than a decade.
export function spansDecades(lines: Line[]): boolean {
  let low = Infinity;
  let high = 0;
  for (const line of lines) {
    for (const value of line.min) {
      if (value === null) continue;
      if (value <= 0) return false;
      low = Math.min(low, value);
    }
    for (const value of line.max) if (value !== null) high = Math.max(high, value);
  }
  return high > 10 * low;
}

export const NOTHING = -32768; // of a map: no value

export function unpacked(map: ParameterMap): Int16Array {
  const text = atob(map.values);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  const view = new DataView(bytes.buffer);
  return Int16Array.from({ length: bytes.length >> 1 }, (_, i) => view.getInt16(2 * i, true));
}

// gradient / weight, where both are known: the difference of their logarithms.
export function ratio(gradient: Int16Array, weight: Int16Array): Int16Array {
  return gradient.map((value, i) => {
    const other = weight[i] ?? NOTHING;
    return value === NOTHING || other === NOTHING ? NOTHING : Math.max(NOTHING + 1, Math.min(32767, value - other));
  });
}

// Bits between each gradient and the largest number of its dtype, negative, so that the largest are those with the
// fewest bits left. Nothing where the dtype is not known.
export function used(map: ParameterMap, gradient: Int16Array, exponents: (number | null)[]): Int16Array {
  return gradient.map((value, i) => {
    const exponent = exponents[Math.floor(i / map.columns)];
    if (value === NOTHING || exponent === null || exponent === undefined) return NOTHING;
    return Math.max(NOTHING + 1, Math.min(32767, value - exponent * map.perOctave));
  });
}

// The rows of another map of the same optimizer, in the order of these names; its columns are as wide as its own.
export function rowsOf(names: string[], other: ParameterMap): Int16Array {
  const values = unpacked(other);
  const row = new Map(other.names.map((name, i) => [name, i]));
  const found = new Int16Array(names.length * other.columns).fill(NOTHING);
  names.forEach((name, i) => {
    const at = row.get(name);
    if (at !== undefined) found.set(values.subarray(at * other.columns, (at + 1) * other.columns), i * other.columns);
  });
  return found;
}

// Those below which 2 % and 98 % of the values lie.
export function colourRange(values: Int16Array): [number, number] {
  const known = values.filter((value) => value !== NOTHING).sort();
  const at = (share: number) => known[Math.min(known.length - 1, Math.floor(share * known.length))] ?? 0;
  const [low, high] = [at(0.02), at(0.98)];
  return high > low ? [low, high] : [low - 1, low + 1];
}
