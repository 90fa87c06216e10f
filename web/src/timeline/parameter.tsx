// One parameter of the map, as two charts: what a click on its row shows.
import { useMemo } from "preact/hooks";
import { Chart } from "./chart";
import { NOTHING, type Happened, type Line, type OptimizerMaps, type ParameterMap } from "./data";
import type { Shown } from "./window";

const NO_MARKS: Happened[] = [];

function line(map: ParameterMap, values: Int16Array, row: number): Line {
  const own = [...values.subarray(row * map.columns, (row + 1) * map.columns)].map((value) =>
    value === NOTHING ? null : 2 ** (value / map.perOctave),
  );
  const wide = (map.last - map.first + 1) / map.columns;
  const step = own.map((_, i) => Math.floor(map.first + i * wide));
  const last_step = own.map((_, i) => map.first + (i + 1) * wide - 1);
  return { run: "", label: "", quantity: "", step, last_step, last: own, min: own, max: own };
}

interface ParameterProps {
  maps: OptimizerMaps;
  row: number;
  gradient: Int16Array;
  weight: Int16Array;
  shown: Shown;
  scheme: number;
}

export function ParameterChart({ maps, row, gradient, weight, shown, scheme }: ParameterProps) {
  const lines = useMemo(
    () => [line(maps.gradient_absmax, gradient, row), line(maps.weight_absmax, weight, row)] as const,
    [maps, row],
  );
  const of = { log: true, shown, scheme, marks: NO_MARKS, runs: [""], unit: "" };
  return (
    <div class="parameter">
      <h4 class="mono">{maps.gradient_absmax.names[row]}</h4>
      <Chart key={`g${row}`} title="Largest gradient" lines={[lines[0]]} {...of} />
      <Chart key={`w${row}`} title="Largest weight" lines={[lines[1]]} {...of} />
    </div>
  );
}
