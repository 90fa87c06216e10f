// All parameters over the steps: a row for each, a colour for its value.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useWidth } from "../measured";
import { grouped, real } from "../words";
import { colourRange, NOTHING, ratio, unpacked, type OptimizerMaps, type ParameterMap } from "./data";
import { ofShare } from "./colours";
import { LEFT, RIGHT } from "./layout";
import { ParameterChart } from "./parameter";
import type { Shown } from "./window";

const MOST_HIGH = 480;
const HEADROOM = "0 bits below the limit of float16 is 65504";

export type Quantity = "gradient" | "weight" | "ratio";
const QUANTITIES: [Quantity, string][] = [
  ["gradient", "Largest gradient"],
  ["weight", "Largest weight"],
  ["ratio", "Gradient / weight"],
];

// The picture, a pixel for each value; rows that share a pixel show the largest of them.
function picture(values: Int16Array, columns: number, rows: number, high: number, range: [number, number]): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = high;
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  const image = context.createImageData(columns, high);
  const palette = Array.from({ length: 256 }, (_, i) => ofShare(i / 255));
  const largest = new Int16Array(columns * high).fill(NOTHING);
  for (let row = 0; row < rows; ++row) {
    const y = Math.floor((row * high) / rows);
    for (let x = 0; x < columns; ++x) {
      const value = values[row * columns + x] ?? NOTHING;
      if (value > (largest[y * columns + x] ?? NOTHING)) largest[y * columns + x] = value;
    }
  }
  largest.forEach((value, i) => {
    if (value === NOTHING) return;
    const share = (value - range[0]) / (range[1] - range[0]);
    const [r, g, b] = palette[Math.max(0, Math.min(255, Math.round(share * 255)))] ?? [0, 0, 0];
    image.data.set([r, g, b, 255], i * 4);
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

export const valueOf = (value: number | undefined, map: ParameterMap): number | null =>
  value === undefined || value === NOTHING ? null : 2 ** (value / map.perOctave);

function Legend({ range, map }: { range: [number, number]; map: ParameterMap }) {
  const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => `rgb(${ofShare(share).join(" ")})`);
  const bits = (value: number) => `2^${Math.round(value / map.perOctave)}`.replace("-", "\u2212");
  const fill = useRef<HTMLSpanElement>(null);
  useEffect(() => fill.current?.style.setProperty("background", `linear-gradient(90deg, ${stops.join(", ")})`), []);
  return (
    <p class="legend" title={HEADROOM}>
      {bits(range[0])} <span class="ramp" ref={fill} /> {bits(range[1])}
      <span class="soft">{` ${Math.max(0, Math.round(16 - range[1] / map.perOctave))} bits below the limit of float16`}</span>
    </p>
  );
}

function Picture({ map, values, shown, chosen, onChoose, label }: {
  map: ParameterMap;
  values: Int16Array;
  shown: Shown;
  chosen: number;
  onChoose: (row: number) => void;
  label: string;
}) {
  const [ref, width] = useWidth<HTMLDivElement>(800);
  const canvas = useRef<HTMLCanvasElement>(null);
  const reading = useRef<HTMLParagraphElement>(null);
  const rows = map.names.length;
  const high = Math.min(MOST_HIGH, Math.max(rows * Math.max(1, Math.min(16, Math.floor(320 / rows))), 24));
  const range = useMemo(() => colourRange(values), [values]);
  const drawn = useMemo(() => picture(values, map.columns, rows, Math.min(high, rows), range), [values, high]);
  const inner = width - LEFT - RIGHT;
  const steps = map.last - map.first + 1;
  useEffect(() => {
    const draw = () => {
      const context = canvas.current?.getContext("2d");
      if (!context) return;
      const { low, high: until } = shown.range;
      context.imageSmoothingEnabled = false;
      context.clearRect(0, 0, inner, high);
      const from = ((low - map.first) / steps) * map.columns;
      const wide = ((until - low) / steps) * map.columns;
      context.drawImage(drawn, from, 0, wide, drawn.height, 0, 0, inner, high);
    };
    draw();
    return shown.subscribe(draw);
  }, [drawn, inner, high]);
  const place = (event: MouseEvent): [number, number] => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const { low, high: until } = shown.range;
    const row = Math.max(0, Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows)));
    return [row, low + ((event.clientX - box.left) / box.width) * (until - low)];
  };
  const move = (event: MouseEvent) => {
    const [row, step] = place(event);
    const column = Math.floor(((step - map.first) / steps) * map.columns);
    const value = valueOf(values[row * map.columns + column], map);
    if (reading.current) reading.current.textContent = `${map.names[row] ?? ""}, step ${grouped(Math.round(step))}: ${real(value)}`;
  };
  const markAt = ((chosen + 0.5) / rows) * high;
  return (
    <div ref={ref} class="map">
      <p class="read mono" ref={reading}>
        {"\u00a0"}
      </p>
      <div class="rows">
        <svg width={LEFT} height={high} aria-hidden="true">
          <text x={LEFT - 8} y={10} text-anchor="end">first</text>
          <text x={LEFT - 8} y={high - 3} text-anchor="end">last</text>
          {chosen >= 0 && <path class="chosen" d={`M${LEFT - 8},${markAt - 5}l8,5l-8,5z`} />}
        </svg>
        <canvas ref={canvas} width={inner} height={high} role="img" aria-label={label} onMouseMove={move} onClick={(event) => onChoose(place(event)[0])} />
      </div>
      <Legend range={range} map={map} />
    </div>
  );
}

export function Maps({ maps, shown, scheme }: { maps: OptimizerMaps[]; shown: Shown; scheme: number }) {
  const [quantity, setQuantity] = useState<Quantity>("gradient");
  const [optimizer, setOptimizer] = useState(0);
  const [row, setRow] = useState(-1);
  const one = maps[Math.min(optimizer, maps.length - 1)];
  const read = useMemo(() => one && { gradient: unpacked(one.gradient_absmax), weight: unpacked(one.weight_absmax) }, [one]);
  const shares = useMemo(() => read && ratio(read.gradient, read.weight), [read]);
  if (!one || !read || !shares) return <p class="soft">No series of single parameters were recorded.</p>;
  const map = quantity === "weight" ? one.weight_absmax : one.gradient_absmax;
  const values = quantity === "ratio" ? shares : read[quantity];
  const name = QUANTITIES.find(([key]) => key === quantity)?.[1] ?? "";
  return (
    <>
      <div class="controls">
        <div role="group" aria-label="Quantity" class="choice">
          {QUANTITIES.map(([key, words]) => (
            <button key={key} type="button" aria-pressed={key === quantity} onClick={() => setQuantity(key)}>
              {words}
            </button>
          ))}
        </div>
        {maps.length > 1 && (
          <label>
            Optimizer{" "}
            <select value={optimizer} onChange={(event) => setOptimizer(Number(event.currentTarget.value))}>
              {maps.map((each, i) => (
                <option key={i} value={i}>
                  {each.optimizer}
                </option>
              ))}
            </select>
          </label>
        )}
        <label>
          Parameter{" "}
          <select value={row} onChange={(event) => setRow(Number(event.currentTarget.value))}>
            <option value={-1}>(click the map)</option>
            {map.names.map((each, i) => (
              <option key={i} value={i}>
                {each}
              </option>
            ))}
          </select>
        </label>
      </div>
      <Picture map={map} values={values} shown={shown} chosen={row} onChoose={setRow} label={`${name} of ${grouped(map.names.length)} parameters over the steps`} />
      {map.more > 0 && <p class="soft">{grouped(map.more)} more parameters are not shown.</p>}
      {row >= 0 && row < map.names.length && <ParameterChart maps={one} row={row} gradient={read.gradient} weight={read.weight} shown={shown} scheme={scheme} />}
    </>
  );
}
