// What a page that stands alone was given.
import { applied, type OptimizerMaps, type Run, type WireRun } from "./data";

export interface Still {
  runs: Run[];
  maps: OptimizerMaps[];
}

export function still(text: string | null | undefined): Still | null {
  if (!text) return null;
  const given = JSON.parse(text) as { live: boolean; runs?: WireRun[]; maps?: OptimizerMaps[] };
  return given.live ? null : { runs: (given.runs ?? []).map((run) => applied(undefined, run)), maps: given.maps ?? [] };
}
