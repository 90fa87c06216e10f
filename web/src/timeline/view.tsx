// The timeline of one run or several: charts, where things happened, the map of parameters.
import { useEffect, useMemo, useState } from "preact/hooks";
import { Chart } from "./chart";
import { extent, marks, type Line, type OptimizerMaps, type Run } from "./data";
import { ofLine } from "./colours";
import { Maps } from "./heat";
import { Differences } from "./differences";
import { Lane, List } from "./lane";
import { Strips } from "./onset_strip";
import { Shown } from "./window";

const TITLES: [string, string, string, boolean][] = [
  // quantity, title, unit, whether a logarithmic axis helps
  ["loss", "Loss", "", true],
  ["gradient_norm", "Norm of the gradients", "", true],
  ["gradient_absmax", "Largest gradient", "", true],
  ["learning_rate", "Learning rate", "", false],
  ["loss_scale", "Loss scale", "", true],
  ["logits_absmax", "Largest logit of the loss", "", true],
  ["attention_absmax", "Largest logit of attention", "", true],
  ["tensor_absmax", "Largest value of each watched tensor", "", true],
  ["step_seconds", "Seconds per step", " s", false],
];

function useScheme(): number {
  const [scheme, setScheme] = useState(0);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setScheme((n) => n + 1);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  return scheme;
}

function Keys({ shown, log, setLog }: { shown: Shown; log: boolean; setLog: (log: boolean) => void }) {
  const [, changed] = useState(0);
  useEffect(() => shown.subscribe(() => changed((n) => n + 1)), []);
  return (
    <div class="controls">
      <div class="choice" role="group" aria-label="Steps shown">
        <button type="button" onClick={() => shown.pan(-0.5)} aria-label="Earlier">
          {"\u2190"}
        </button>
        <button type="button" onClick={() => shown.zoom(0.5)}>Zoom in</button>
        <button type="button" onClick={() => shown.zoom(2)}>Zoom out</button>
        <button type="button" disabled={!shown.isZoomed} onClick={() => shown.choose(null)}>All steps</button>
        <button type="button" onClick={() => shown.pan(0.5)} aria-label="Later">
          {"\u2192"}
        </button>
      </div>
      <label>
        <input type="checkbox" checked={log} onChange={(event) => setLog(event.currentTarget.checked)} /> Log axes
      </label>
      <span class="soft hint">Drag to zoom, Shift and drag to move, double-click for all steps</span>
    </div>
  );
}

function Names({ runs, lines }: { runs: string[]; lines: Line[] }) {
  const labels = [...new Map(lines.map((line) => [`${line.run} ${line.label}`, line])).entries()];
  if (labels.length < 2) return null;
  return (
    <ul class="names">
      {labels.map(([name, line]) => (
        <li key={name}>
          <svg width="18" height="10" aria-hidden="true">
            <line x1="0" x2="18" y1="5" y2="5" stroke-width="2.5" stroke={ofLine(runs.indexOf(line.run), line.label)} />
          </svg>
          {runs.length > 1 ? name : line.label}
        </li>
      ))}
    </ul>
  );
}

export function Timeline({ runs, maps, level }: { runs: Run[]; maps: OptimizerMaps[] | null; level: "h2" | "h3" }) {
  const [log, setLog] = useState(true);
  const scheme = useScheme();
  const lines = runs.flatMap((run) => [...run.lines.values()]);
  const whole = extent(lines);
  const shown = useMemo(() => new Shown(whole), []);
  useEffect(() => shown.grow(whole), [whole.low, whole.high]);
  const happened = useMemo(() => marks(runs), [runs.map((run) => `${run.name} ${run.events.length} ${run.events.filter((e) => e.explained).length}`).join()]);
  const hasLines = lines.length > 0;
  useEffect(() => {
    if (hasLines) requestAnimationFrame(() => setTimeout(() => performance.mark("timeline"))); // what tests measure
  }, [hasLines]);
  const names = runs.map((run) => run.name);
  const Heading = level;
  const keys = (event: KeyboardEvent) => {
    const acts: Record<string, () => void> = {
      ArrowLeft: () => shown.pan(-0.25),
      ArrowRight: () => shown.pan(0.25),
      "+": () => shown.zoom(0.5),
      "-": () => shown.zoom(2),
      "0": () => shown.choose(null),
    };
    const act = acts[event.key];
    if (!act || event.target instanceof HTMLSelectElement || event.target instanceof HTMLInputElement) return;
    event.preventDefault();
    act();
  };
  if (!hasLines) return <p class="soft">No steps are recorded yet.</p>;
  return (
    <div class="timeline">
      <Keys shown={shown} log={log} setLog={setLog} />
      <Names runs={names} lines={lines} />
      <Lane marks={happened} shown={shown} />
      <div class="charts" tabIndex={0} role="group" aria-label="Charts: arrow keys move, plus and minus zoom, 0 shows all steps" onKeyDown={keys}>
        {TITLES.map(([quantity, title, unit, may]) => {
          const own = lines.filter((line) => line.quantity === quantity);
          return own.length > 0 && <Chart key={quantity} title={title} unit={unit} lines={own} log={log && may} shown={shown} marks={happened} runs={names} scheme={scheme} />;
        })}
      </div>
      <Heading>Parameters</Heading>
      {maps === null ? <p class="soft">The map is being read.</p> : <Maps maps={maps} shown={shown} scheme={scheme} />}
      <Differences runs={runs} level={level} />
      <Heading>Events</Heading>
      {runs.map((run) => (
        <Strips key={run.name} strips={run.strips} events={run.events} />
      ))}
      <List marks={happened} shown={shown} />
    </div>
  );
}
