// One quantity of all runs over the steps, drawn by uPlot: the last value of each point, and the range that it covers.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useWidth } from "../measured";
import { grouped, real } from "../words";
import type { Happened, Line } from "./data";
import { spansDecades } from "./data";
import { logSplits } from "./splits";
import { colour, ofLine } from "./colours";
import { LEFT, RIGHT } from "./layout";
import type { Shown } from "./window";

const HIGH = 150;
const MOST_RANGES = 1; // lines whose range is drawn too: with more, charts overlap, and a move takes long
const MARKS: Record<string, string> = { alarm: "--nan", warning: "--inf", skip: "--faint", rollback: "--nan" };

const aligned = (lines: Line[], isLog: boolean): uPlot.AlignedData => {
  const positive = (values: (number | null)[]) => (isLog ? values.map((v) => (v !== null && v > 0 ? v : null)) : values);
  const hasRange = lines.length <= MOST_RANGES;
  const tables = lines.map(
    (line) => [line.last_step, ...[line.last, ...(hasRange ? [line.min, line.max] : [])].map(positive)] as uPlot.AlignedData,
  );
  return tables.length ? uPlot.join(tables) : [[], []];
};

function shade(plot: uPlot, marks: Happened[]) {
  const { ctx, bbox } = plot;
  const at = (step: number) => plot.valToPos(step, "x", true);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const one of marks) {
    if (one.kind !== "alarm" || one.since === undefined || one.step === null) continue;
    ctx.fillStyle = colour("--nan-wash");
    ctx.fillRect(at(one.since), bbox.top, at(one.step) - at(one.since), bbox.height);
  }
  let before = -10;
  for (const one of marks) {
    const name = MARKS[one.kind];
    const x = Math.round(at(one.step ?? 0));
    if (!name || (one.kind !== "alarm" && Math.abs(x - before) < 2)) continue;
    before = x;
    ctx.strokeStyle = colour(name);
    ctx.lineWidth = (one.kind === "alarm" ? 1.5 : 1) * devicePixelRatio;
    ctx.setLineDash(one.kind === "alarm" ? [] : [3 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

interface ChartProps {
  title: string;
  unit: string;
  lines: Line[];
  log: boolean;
  shown: Shown;
  marks: Happened[];
  runs: string[]; // in the order of their colours
  scheme: number;
}

function options(props: ChartProps, width: number, isLog: boolean, onRead: (at: number | null) => void): uPlot.Options {
  const { lines, shown } = props;
  const ink = colour("--soft");
  const font = `11px ${colour("--sans") || "sans-serif"}`;
  const axis: uPlot.Axis = { stroke: ink, font, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const hasRange = lines.length <= MOST_RANGES;
  const edge: uPlot.Series = { stroke: "rgba(0,0,0,0)", width: 0, points: { show: false } };
  return {
    width,
    height: HIGH,
    padding: [8, RIGHT, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: "timeline" },
      points: { size: 6 },
      y: false,
      drag: { x: true, y: false, setScale: false },
      bind: {
        mousedown: (_plot, _target, handler) => (event: MouseEvent) => {
          if (!event.shiftKey) handler(event);
          return null;
        },
        dblclick: () => () => {
          shown.choose(null);
          return null;
        },
      },
    },
    scales: {
      x: { time: false, range: () => [shown.range.low, shown.range.high] },
      y: {
        distr: isLog ? 3 : 1,
        range: (_plot, low, high) => {
          if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return isLog ? [0.1, 1] : [0, 1];
          if (isLog) return [low / 1.2, high * 1.2];
          const room = (high - low || Math.abs(high) || 1) * 0.08;
          return [low >= 0 && low < room * 4 ? 0 : low - room, high + room];
        },
      },
    },
    axes: [
      { ...axis, size: 24, space: 90, values: (_plot, splits) => splits.map((at) => grouped(at)) },
      {
        ...axis,
        size: LEFT,
        space: 28,
        ...(isLog ? { splits: (_plot: uPlot, _axis: number, low: number, high: number) => logSplits(low, high) } : {}),
        filter: (_plot, splits) => splits, // else a logarithmic axis leaves some of its words out
        values: (_plot, splits) => splits.map((at) => (at === null ? "" : real(at))),
      },
    ],
    series: [
      {},
      ...lines.flatMap((line): uPlot.Series[] => {
        const stroke = ofLine(props.runs.indexOf(line.run), line.label);
        return [
          { stroke, width: 1.5, pxAlign: 0, points: { show: line.step.length < 3 } },
          ...(hasRange ? [edge, edge] : []),
        ];
      }),
    ],
    bands: hasRange
      ? lines.map((line, i) => ({ series: [3 * i + 3, 3 * i + 2] as uPlot.Band.Bounds, fill: `${ofLine(props.runs.indexOf(line.run), line.label)}38` }))
      : [],
    hooks: {
      drawClear: [(plot) => shade(plot, props.marks)],
      setSelect: [
        (plot) => {
          const { left, width: wide } = plot.select;
          if (wide > 3) shown.choose({ low: plot.posToVal(left, "x"), high: plot.posToVal(left + wide, "x") });
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
      setCursor: [(plot) => onRead(plot.cursor.idx ?? null)],
    },
  };
}

// Shift and the mouse move what is shown.
function movable(plot: uPlot, shown: Shown): () => void {
  let from: number | null = null;
  const down = (event: MouseEvent) => {
    if (!event.shiftKey) return;
    from = event.clientX;
    event.preventDefault();
  };
  const move = (event: MouseEvent) => {
    if (from === null) return;
    shown.pan((from - event.clientX) / plot.over.clientWidth);
    from = event.clientX;
  };
  const up = () => (from = null);
  plot.over.addEventListener("mousedown", down);
  addEventListener("mousemove", move);
  addEventListener("mouseup", up);
  return () => {
    removeEventListener("mousemove", move);
    removeEventListener("mouseup", up);
  };
}

const newest = (line: Line) => line.last.findLast((value) => value !== null) ?? null;

export function Chart(props: ChartProps) {
  const { title, unit, lines, shown } = props;
  const [ref, width] = useWidth<HTMLDivElement>(800);
  const target = useRef<HTMLDivElement>(null);
  const reading = useRef<HTMLSpanElement>(null);
  const plot = useRef<uPlot | null>(null);
  const isLog = props.log && spansDecades(lines);
  const form = lines.map((line) => `${line.run} ${line.label}`).join("|");
  const words = lines
    .slice(0, 4)
    .map((line) => (lines.length > 1 ? `${line.run} ${line.label} ${real(newest(line))}` : real(newest(line))))
    .join(", ");
  useEffect(() => {
    if (!target.current) return undefined;
    const read = (at: number | null) => {
      const data = made.data;
      const step = at === null ? undefined : data[0][at];
      const value = lines.map((_, i) => data[(lines.length > MOST_RANGES ? i : 3 * i) + 1]?.[at ?? 0]).find((v) => v !== null && v !== undefined);
      if (reading.current) reading.current.textContent = step === undefined ? "" : `step ${grouped(step)}: ${real(value ?? null)}${unit}`;
    };
    const made = new uPlot(options(props, width, isLog, read), aligned(lines, isLog), target.current);
    plot.current = made;
    const still = movable(made, shown);
    const end = shown.subscribe(() => made.setScale("x", { min: shown.range.low, max: shown.range.high }));
    return () => {
      end();
      still();
      plot.current = null;
      made.destroy();
    };
  }, [width, props.scheme, isLog, form, props.marks]);
  useEffect(() => plot.current?.setData(aligned(lines, isLog)), [lines.map((line) => line.last).reduce((n, l) => n + l.length, 0), lines.map((l) => newest(l)).join()]);
  return (
    <figure class="chart" ref={ref}>
      <figcaption>
        <span class="title">{title}</span> <span class="soft">{isLog ? "log axis" : ""}</span>
        <span class="read mono" ref={reading} />
        <span class="spoken">newest: {words}</span>
      </figcaption>
      <div ref={target} role="img" aria-label={`${title}, newest ${words}${unit}`} />
    </figure>
  );
}
