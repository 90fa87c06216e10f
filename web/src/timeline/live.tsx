// The page of `finitude live`: listens to the server, and asks for the map of parameters now and then.
import { useEffect, useState } from "preact/hooks";
import { applied, type OptimizerMaps, type Run, type WireRun } from "./data";
import { Timeline } from "./view";

const MAP_SECONDS = 20;
const RETRY_SECONDS = 2;
const MOST_CHOSEN = 8;

const address = (path: string, runs: string[]): string => {
  const query = new URLSearchParams({ token: new URLSearchParams(location.search).get("token") ?? "" });
  for (const run of runs) query.append("run", run);
  return `${path}?${query}`;
};

function useRuns(chosen: string[]) {
  const [every, setEvery] = useState<string[]>([]);
  const [runs, setRuns] = useState<Map<string, Run>>(new Map());
  const [isHere, setHere] = useState(false);
  useEffect(() => {
    let source: EventSource;
    let timer = 0;
    const start = () => {
      source = new EventSource(address("/events", chosen));
      source.onopen = () => setHere(true);
      source.onerror = () => {
        setHere(false);
        if (source.readyState !== EventSource.CLOSED) return;
        timer = window.setTimeout(start, RETRY_SECONDS * 1000); // it was refused, which a browser takes as final
      };
      source.addEventListener("runs", (event) => setEvery(JSON.parse(event.data) as string[]));
      source.addEventListener("run", (event) => {
        const wire = JSON.parse(event.data) as WireRun;
        setRuns((before) => {
          const kept = new Map(chosen.length ? [...before].filter(([name]) => chosen.includes(name)) : before.has(wire.name) ? before : []);
          return kept.set(wire.name, applied(kept.get(wire.name), wire));
        });
      });
    };
    setRuns(new Map());
    start();
    return () => {
      clearTimeout(timer);
      source.close();
    };
  }, [chosen.join("\n")]);
  return { every, runs: [...runs.values()], isHere };
}

function useMaps(run: string | undefined, isEnded: boolean): OptimizerMaps[] | null {
  const [maps, setMaps] = useState<OptimizerMaps[] | null>(null);
  useEffect(() => {
    if (!run) return undefined;
    setMaps(null);
    let timer = 0;
    let isGone = false;
    const ask = async () => {
      try {
        const found = (await (await fetch(address("/maps", [run]))).json()) as OptimizerMaps[];
        if (!isGone) setMaps(found);
      } catch {
        // asked again
      }
      if (!isGone && !isEnded) timer = window.setTimeout(ask, MAP_SECONDS * 1000);
    };
    void ask();
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [run, isEnded]);
  return maps;
}

export function Live() {
  const [chosen, setChosen] = useState<string[]>([]);
  const { every, runs, isHere } = useRuns(chosen);
  const first = runs[0];
  const maps = useMaps(first?.name, first !== undefined && first.state !== "running");
  useEffect(() => {
    if (first) document.title = `finitude: ${first.name}`;
  }, [first?.name]);
  const isShown = (name: string) => runs.some((run) => run.name === name);
  const toggle = (name: string) => {
    const now = chosen.length ? chosen : runs.map((run) => run.name);
    const next = now.includes(name) ? now.filter((one) => one !== name) : [...now, name].slice(-MOST_CHOSEN);
    setChosen(next);
  };
  const trouble = runs.map((run) => run.trouble).find(Boolean);
  return (
    <div class="alone">
      <header>
        <p class={`name ${isHere ? "here" : "gone"}`} role="status">
          Finitude live{isHere ? "" : ": the server does not answer, trying again"}
        </p>
        <h1>{first ? first.name : "No run yet"}</h1>
        {first && <p class="soft">{runs.map((run) => (runs.length > 1 ? `${run.name}: ${run.state}` : capital(run.state))).join(", ")}</p>}
        {trouble && <p class="nan">{trouble}</p>}
      </header>
      {every.length > 1 && (
        <details class="runs">
          <summary>{every.length} runs in this folder</summary>
          {every.map((name) => (
            <label key={name}>
              <input type="checkbox" checked={isShown(name)} onChange={() => toggle(name)} /> {name}
            </label>
          ))}
        </details>
      )}
      <main>
        <Timeline key={runs.map((run) => run.name).join()} runs={runs} maps={maps} level="h2" />
      </main>
    </div>
  );
}

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);
