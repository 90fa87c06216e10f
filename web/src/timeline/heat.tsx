// All parameters over the steps: a row for each, a colour for its value.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useWidth } from "../measured";
import { grouped, real } from "../words";
import { colourRange, NOTHING, ratio, rowsOf, unpacked, used, type OptimizerMaps, type ParameterMap } from "./data";
import { ofShare } from "./colours";
import { LEFT, RIGHT } from "./layout";
import { ParameterChart } from "./parameter";
import type { Shown } from "./window";

const MOST_HIGH = 480;
export type Quantity = "gradient" | "headroom" | "weight" | "ratio" | "update";
const QUANTITIES: [Quantity, string][] = [
  ["gradient", "Largest gradient"],
  ["headroom", "Headroom of gradients"],
  ["weight", "Largest weight"],
  ["ratio", "Gradient / weight"],
  ["update", "Update / weight"],
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

const inBits = (value: number, map: ParameterMap) => `${(-value / map.perOctave).toFixed(1)} bits`;

function Legend({ range, map, quantity }: { range: [number, number]; map: ParameterMap; quantity: Quantity }) {
  const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => `rgb(${ofShare(share).join(" ")})`);
  const power = (value: number) => `2^${Math.round(value / map.perOctave)}`.replace("-", "\u2212");
  const words = (value: number) => (quantity === "headroom" ? inBits(value, map) : power(value));
  const fill = useRef<HTMLSpanElement>(null);
  useEffect(() => fill.current?.style.setProperty("background", `linear-gradient(90deg, ${stops.join(", ")})`), []);
  return (
    <p class="legend">
      {words(range[0])} <span class="ramp" ref={fill} /> {words(range[1])}
      {quantity === "headroom" && <span class="soft">{" to the largest number of each gradient's dtype"}</span>}
    </p>
  );
}

function Picture({ map, quantity, values, shown, chosen, onChoose, label }: {
  map: ParameterMap;
  quantity: Quantity;
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
    const value = values[row * map.columns + column] ?? NOTHING;
    const words = quantity === "headroom" && value !== NOTHING ? inBits(value, map) : real(valueOf(value, map));
    if (reading.current) reading.current.textContent = `${map.names[row] ?? ""}, step ${grouped(Math.round(step))}: ${words}`;
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
      <Legend range={range} map={map} quantity={quantity} />
    </div>
  );
}

interface Read {
  gradient: Int16Array;
  weight: Int16Array;
}

// What there is to show: a store of an earlier build knows no dtypes and no updates.
function valuesOf(maps: OptimizerMaps, read: Read): Partial<Record<Quantity, Int16Array>> {
  const found: Partial<Record<Quantity, Int16Array>> = { ...read, ratio: ratio(read.gradient, read.weight) };
  const { gradient_absmax, exponents, update_ratio } = maps;
  if (exponents?.some((one) => one !== null)) found.headroom = used(gradient_absmax, read.gradient, exponents);
  if (update_ratio?.names.length) found.update = rowsOf(gradient_absmax.names, update_ratio);
  return found;
}

export function Maps({ maps, shown, scheme }: { maps: OptimizerMaps[]; shown: Shown; scheme: number }) {
  const [quantity, setQuantity] = useState<Quantity>("gradient");
  const [optimizer, setOptimizer] = useState(0);
  const [row, setRow] = useState(-1);
  const one = maps[Math.min(optimizer, maps.length - 1)];
  const read = useMemo(() => one && { gradient: unpacked(one.gradient_absmax), weight: unpacked(one.weight_absmax) }, [one]);
  const every = useMemo(() => one && read && valuesOf(one, read), [read]);
  if (!one || !read || !every) return <p class="soft">No series of single parameters were recorded.</p>;
  const offered = QUANTITIES.filter(([key]) => every[key]);
  const [now, name] = offered.find(([key]) => key === quantity) ?? ["gradient", "Largest gradient"];
  const values = every[now] ?? read.gradient;
  const names = one.gradient_absmax.names;
  const map = now === "weight" ? one.weight_absmax : now === "update" && one.update_ratio ? { ...one.update_ratio, names } : one.gradient_absmax;
  return (
    <>
      <div class="controls">
        <div role="group" aria-label="Quantity" class="choice">
          {offered.map(([key, words]) => (
            <button key={key} type="button" aria-pressed={key === now} onClick={() => setQuantity(key)}>
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
      <Picture map={map} quantity={now} values={values} shown={shown} chosen={row} onChoose={setRow} label={`${name} of ${grouped(map.names.length)} parameters over the steps`} />
      {map.more > 0 && <p class="soft">{grouped(map.more)} more parameters are not shown.</p>}
      {row >= 0 && row < map.names.length && <ParameterChart maps={one} row={row} gradient={read.gradient} weight={read.weight} shown={shown} scheme={scheme} />}
    </>
  );
}
