// Loss and largest gradient of the steps before the alarm, drawn by uPlot.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Real } from "./document";
import { finite, isLogarithmic, powersOfTen, seriesWords } from "./history";
import { useWidth } from "./measured";
import { real } from "./words";

const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function options(width: number, values: Real[], onset: number | null): uPlot.Options {
  const ink = colour("--soft");
  const font = `11px ${colour("--sans") || "sans-serif"}`;
  const axis: uPlot.Axis = { stroke: ink, font, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const mark = (plot: uPlot, x: number, stroke: string) => {
    const at = Math.round(plot.valToPos(x, "x", true));
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = stroke;
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  };
  return {
    width,
    height: 150,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { time: false }, y: { distr: isLogarithmic(values) ? 3 : 1 } },
    axes: [
      { ...axis, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100], values: (_plot, splits) => splits.map((at) => (at === 0 ? "alarm" : String(at).replace("-", "\u2212"))) },
      {
        ...axis,
        size: 58,
        ...(isLogarithmic(values) ? { splits: (_plot: uPlot, _axis: number, low: number, high: number) => powersOfTen(low, high) } : {}),
        values: (_plot, splits) => splits.map((at) => (at === null ? "" : real(at))),
      },
    ],
    series: [{}, { stroke: colour("--finite"), width: 1.75, points: { show: values.length < 40, size: 4 } }],
    hooks: {
      draw: [
        (plot) => {
          values.forEach((value, i) => {
            if (typeof value === "string") mark(plot, i - values.length, colour("--nan"));
          });
          mark(plot, 0, colour("--nan"));
          if (onset !== null) mark(plot, -onset, colour("--inf"));
        },
      ],
    },
  };
}

export function Series({ name, values, onset }: { name: string; values: Real[]; onset: number | null }) {
  const [ref, width] = useWidth<HTMLDivElement>(600);
  const target = useRef<HTMLDivElement>(null);
  const [dark, setDark] = useState(0);
  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark((n) => n + 1);
    scheme.addEventListener("change", changed);
    return () => scheme.removeEventListener("change", changed);
  }, []);
  useEffect(() => {
    if (!target.current) return undefined;
    const steps = [...values.map((_, i) => i - values.length), 0];
    const shown = [...values.map((value) => (finite(value) ? value : null)), null];
    const plot = new uPlot(options(width, values, onset), [steps, shown], target.current);
    return () => plot.destroy();
  }, [width, dark]);
  const words = seriesWords(name, values);
  return (
    <figure class="series" ref={ref}>
      <figcaption>{words}</figcaption>
      <div ref={target} role="img" aria-label={words} />
    </figure>
  );
}
