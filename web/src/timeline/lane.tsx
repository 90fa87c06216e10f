// Where warnings, alarms and checkpoints happened: a strip above the charts, and a list below them.
import { useEffect, useState } from "preact/hooks";
import { useWidth } from "../measured";
import { capitalised, counted, cutLeft, grouped } from "../words";
import type { Happened } from "./data";
import { LEFT, RIGHT } from "./layout";
import type { Shown } from "./window";

const HIGH = 30;
const MOST_GLYPHS = 400;
const MOST_ROWS = 200;
const SHAPES: Record<string, string> = {
  alarm: "M0,-7L7,0L0,7L-7,0Z",
  warning: "M0,-6L6,5H-6Z",
  checkpoint: "M-4,-4H4V4H-4Z",
  skip: "M-4,-4L4,4M4,-4L-4,4",
  rollback: "M-4,0L4,-4V4Z",
};

export function said(one: Happened): string {
  return one.text || one.verdict || one.what || one.kind;
}

export const bad = (one: Happened): boolean => one.kind === "alarm" || (one.kind === "checkpoint" && one.verdict !== "good");

export function Lane({ marks, shown }: { marks: Happened[]; shown: Shown }) {
  const [ref, width] = useWidth<HTMLDivElement>(800);
  const [, changed] = useState(0);
  useEffect(() => shown.subscribe(() => changed((n) => n + 1)), []);
  const { low, high } = shown.range;
  const at = (step: number) => LEFT + ((step - low) / (high - low)) * (width - LEFT - RIGHT);
  const seen = new Set<string>();
  const drawn = [...marks].sort((a, b) => Number(bad(a)) - Number(bad(b))).filter((one) => {
    const step = one.step ?? -1;
    if (step < low || step > high || seen.size >= MOST_GLYPHS) return false;
    const key = `${one.kind} ${one.verdict ?? ""} ${Math.round(at(step) / 5)}`;
    return !seen.has(key) && seen.add(key);
  });
  return (
    <div class="lane" ref={ref}>
      <svg width={width} height={HIGH} role="img" aria-label={`${counted(marks.length, "event")}, listed below`}>
        <line x1={LEFT} x2={width - RIGHT} y1={HIGH / 2} y2={HIGH / 2} />
        {drawn.map((one, i) => (
          <g key={i}>
            {one.kind === "alarm" && one.since !== undefined && (
              <rect class="onset" x={Math.max(LEFT, at(one.since))} width={Math.max(0, at(one.step ?? 0) - Math.max(LEFT, at(one.since)))} y={HIGH / 2 - 4} height={8} />
            )}
            <path class={`${one.kind} ${bad(one) ? "bad" : ""}`} d={SHAPES[one.kind]} transform={`translate(${at(one.step ?? 0).toFixed(1)} ${HIGH / 2})`}>
              <title>{`step ${one.step}: ${said(one)}`}</title>
            </path>
          </g>
        ))}
      </svg>
    </div>
  );
}

function Onset({ one }: { one: Happened }) {
  if (one.since === undefined || one.step === null) return null;
  const steps = counted(one.step - one.since, "step");
  return (
    <span class="soft">{` Since step ${grouped(one.since)}, ${steps} before${one.name ? `: ${one.name}` : ""}.`}</span>
  );
}

export function List({ marks, shown }: { marks: Happened[]; shown: Shown }) {
  if (!marks.length) return <p class="soft">No warning, alarm or checkpoint so far.</p>;
  const newest = [...marks].sort((a, b) => (b.step ?? 0) - (a.step ?? 0)).slice(0, MOST_ROWS);
  const show = (one: Happened) => {
    const step = one.step ?? 0;
    const from = one.since ?? step;
    const room = Math.max(20, (step - from) * 0.5);
    shown.choose({ low: from - room, high: step + room });
  };
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Events">
      <table class="events">
        <thead>
          <tr>
            <th scope="col">Step</th>
            <th scope="col">Kind</th>
            <th scope="col">What</th>
          </tr>
        </thead>
        <tbody>
          {newest.map((one, i) => (
            <tr key={i}>
              <td>
                <button type="button" class="link" onClick={() => show(one)}>
                  {grouped(one.step ?? 0)}
                </button>
              </td>
              <td class={bad(one) ? "nan" : one.kind === "warning" ? "inf" : ""}>{capitalised(one.kind)}</td>
              <td>
                {capitalised(said(one))}
                {one.op && <span class="mono soft">{` ${one.op} ${cutLeft(one.file ?? "", 40)}:${one.line}`}</span>}
                <Onset one={one} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {marks.length > MOST_ROWS && <p class="soft">{grouped(marks.length - MOST_ROWS)} earlier ones are not listed.</p>}
    </div>
  );
}
