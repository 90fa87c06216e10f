import { expect, it } from "vitest";
import { differences } from "./compare";
import { applied, type Run } from "./data";

const run = (name: string, settings: Record<string, string>, isBad: boolean): Run =>
  applied(undefined, {
    name,
    state: "finished",
    settings,
    processes: [{ key: "", series: [], events: isBad ? [{ kind: "alarm", step: 1, rank: 0 }] : [] }],
  });

it("names the settings that separate runs with alarms first", () => {
  const runs = [
    run("a", { torch: "2.13", seed: "1", "AdamW lr": "0.1" }, true),
    run("b", { torch: "2.13", seed: "2", "AdamW lr": "0.1", extra: "on" }, true),
    run("c", { torch: "2.13", seed: "1", "AdamW lr": "0.001" }, false),
  ];
  expect(differences(runs)).toEqual([
    { name: "AdamW lr", withAlarm: ["0.1"], without: ["0.001"], separates: true },
    { name: "seed", withAlarm: ["1", "2"], without: ["1"], separates: false },
    { name: "extra", withAlarm: ["(not set)", "on"], without: ["(not set)"], separates: false },
  ]);
});

it("needs a run on either side", () => {
  expect(differences([run("a", { lr: "1" }, true), run("b", { lr: "2" }, true)])).toEqual([]);
  expect(differences([run("a", { lr: "1" }, true), run("b", {}, false)])).toEqual([]);
});
