// What grew before an alarm: a small chart from some steps before the onset to the alarm, with what happened meanwhile.
import { useWidth } from "../measured";
import { grouped, real } from "../words";
import type { Happened, Strip } from "./data";

const HIGH = 110;
const TOP = 34; // of the curve: words stand above it, in two rows
const WORD = 96; // pixels of the longest word
const EDGE = 8;
const QUANTITIES: Record<string, string> = {
  loss: "loss",
  gradient_norm: "norm of the gradients",
  gradient_absmax: "largest gradient",
  weight_absmax: "largest weight",
  learning_rate: "learning rate",
};

interface Mark {
  step: number;
  kind: string;
  word: string;
}

// The onset, the first warning, the last good checkpoint before the onset, and the alarm, in order.
export function marksOf(strip: Strip, events: Happened[]): Mark[] {
  const inside = events.filter((one) => one.step !== null && one.step >= strip.from && one.step <= strip.step);
  const isGood = (one: Happened) => one.kind === "checkpoint" && one.verdict === "good" && (one.step ?? 0) <= strip.since;
  const good = inside.findLast(isGood);
  const warning = inside.find((one) => one.kind === "warning");
  const found = [
    ...(good ? [{ step: good.step ?? 0, kind: "checkpoint", word: "good checkpoint" }] : []),
    { step: strip.since, kind: "since", word: "onset" },
    ...(warning ? [{ step: warning.step ?? 0, kind: "warning", word: "warning" }] : []),
    { step: strip.step, kind: "alarm", word: "alarm" },
  ];
  return found.sort((a, b) => a.step - b.step);
}

function OneStrip({ strip, events }: { strip: Strip; events: Happened[] }) {
  const [ref, width] = useWidth<HTMLDivElement>(800);
  const positive = strip.values.filter((value) => value > 0);
  const isLog = positive.length === strip.values.length && Math.max(...positive) > 10 * Math.min(...positive);
  const scaled = strip.values.map((value) => (isLog ? Math.log10(value) : value));
  const [bottom, top] = [Math.min(...scaled), Math.max(...scaled)];
  const x = (step: number) => EDGE + ((step - strip.from) / Math.max(1, strip.step - strip.from)) * (width - 2 * EDGE);
  const y = (value: number) => HIGH - EDGE - (top > bottom ? (value - bottom) / (top - bottom) : 0.5) * (HIGH - TOP - 2 * EDGE);
  const path = scaled.map((value, i) => `${i ? "L" : "M"}${x(strip.at[i] ?? 0).toFixed(1)},${y(value).toFixed(1)}`).join("");
  const marks = marksOf(strip, events);
  const what = `${QUANTITIES[strip.quantity] ?? strip.quantity}${strip.name ? ` of ${strip.name}` : ""}`;
  const range = `${real(strip.values[0] ?? null)} to ${real(strip.values[strip.values.length - 1] ?? null)}`;
  const words = marks.map((one) => `${one.word} at step ${grouped(one.step)}`).join(", ");
  return (
    <figure class="strip" ref={ref}>
      <figcaption>
        <span class="title">Alarm at step {grouped(strip.step)}</span>{" "}
        <span class="soft">
          {what}, {range}
          {isLog ? ", log axis" : ""}: {words}
        </span>
      </figcaption>
      <svg width={width} height={HIGH} role="img" aria-label={`${what}, ${range}; ${words}`}>
        <rect class="onset" x={x(strip.since)} width={Math.max(0, x(strip.step) - x(strip.since))} y={TOP} height={HIGH - TOP} />
        <path class="curve" d={path} />
        {marks.map((one, i) => (
          <g key={i} class={one.kind}>
            <line x1={x(one.step)} x2={x(one.step)} y1={TOP} y2={HIGH} />
            <text x={x(one.step)} y={TOP - 6 - 14 * (i % 2 && x(one.step) - x(marks[i - 1]?.step ?? 0) < WORD ? 1 : 0)} text-anchor={x(one.step) > width - 90 ? "end" : "start"}>
              {one.word}
            </text>
          </g>
        ))}
      </svg>
    </figure>
  );
}

export function Strips({ strips, events }: { strips: Strip[]; events: Happened[] }) {
  return (
    <>
      {strips.map((strip) => (
        <OneStrip key={strip.step} strip={strip} events={events} />
      ))}
    </>
  );
}
