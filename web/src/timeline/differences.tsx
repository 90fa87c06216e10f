// A small table: the settings in which runs with an alarm differ from those without.
import { counted } from "../words";
import { differences, hasAlarm } from "./compare";
import type { Run } from "./data";

export function Differences({ runs, level }: { runs: Run[]; level: "h2" | "h3" }) {
  if (runs.length < 2) return null;
  const rows = differences(runs);
  const bad = runs.filter(hasAlarm).length;
  if (!bad || bad === runs.length) return null;
  const Heading = level;
  return (
    <section>
      <Heading>What runs with an alarm share</Heading>
      {rows.length === 0 && <p class="soft">No setting in run.json differs between runs with and without an alarm.</p>}
      {rows.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Settings that differ">
          <table class="events">
            <thead>
              <tr>
                <th scope="col">Setting</th>
                <th scope="col">{counted(bad, "run")} with an alarm</th>
                <th scope="col">{counted(runs.length - bad, "run")} without</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.name}>
                  <td class={row.separates ? "mono separates" : "mono"}>{row.name}</td>
                  <td class="mono">{row.withAlarm.join(", ")}</td>
                  <td class="mono">{row.without.join(", ")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
