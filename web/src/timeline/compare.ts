// In what runs with an alarm differ from those without. Pure.
import type { Run } from "./data";

export interface Difference {
  name: string;
  withAlarm: string[];
  without: string[];
  separates: boolean; // no value is on both sides
}

const MOST_ROWS = 30;
const ABSENT = "(not set)";

export const hasAlarm = (run: Run): boolean => run.events.some((one) => one.kind === "alarm");

const values = (runs: Run[], name: string): string[] => [...new Set(runs.map((run) => run.settings[name] ?? ABSENT))].sort();

// Settings whose values differ between the two sides; those that separate them first. Empty where a side has no run.
export function differences(runs: Run[]): Difference[] {
  const known = runs.filter((run) => Object.keys(run.settings).length > 0);
  const bad = known.filter(hasAlarm);
  const good = known.filter((run) => !hasAlarm(run));
  if (!bad.length || !good.length) return [];
  const found: Difference[] = [];
  for (const name of new Set(known.flatMap((run) => Object.keys(run.settings)))) {
    const [withAlarm, without] = [values(bad, name), values(good, name)];
    if (withAlarm.join("\n") === without.join("\n")) continue;
    found.push({ name, withAlarm, without, separates: withAlarm.every((value) => !without.includes(value)) });
  }
  return found.sort((a, b) => Number(b.separates) - Number(a.separates)).slice(0, MOST_ROWS);
}
