import { useMemo, useState } from "preact/hooks";
import type { Bounded, Cause, Operation, Place, Story, Tensor } from "./document";
import { stateOfText } from "./flow";
import { More, Wide } from "./parts";
import { counted, grouped, real } from "./words";

const cell = (value: number, kind: string) => <td class={value > 0 ? `n ${kind}` : "n faint"}>{grouped(value)}</td>;

export function TensorTable({ inputs, outputs }: { inputs: Bounded<Tensor>; outputs: Bounded<Tensor> }) {
  const rows = [
    ...inputs.items.map((tensor) => ({ side: "operand", tensor })),
    ...outputs.items.map((tensor) => ({ side: "output", tensor })),
  ];
  if (!rows.length) return null;
  return (
    <>
      <Wide name="Values of operands and outputs">
        <table>
          <thead>
            <tr>
              <th scope="col">Tensor</th>
              <th scope="col">Type</th>
              <th scope="col" class="n">Min</th>
              <th scope="col" class="n">Max</th>
              <th scope="col" class="n">NaN</th>
              <th scope="col" class="n">Inf</th>
              <th scope="col" class="n">{"\u2212Inf"}</th>
              <th scope="col" class="n">Zeros</th>
              <th scope="col" class="n">Values</th>
              <th scope="col">Where</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ side, tensor }, i) => (
              <tr key={i}>
                <th scope="row">{tensor.name ? <>{side} <code>{tensor.name}</code></> : side}</th>
                <td class="mono">{tensor.type}</td>
                <td class="n">{real(tensor.min)}</td>
                <td class="n">{real(tensor.max)}</td>
                {cell(tensor.nan, "nan")}
                {cell(tensor.inf, "inf")}
                {cell(tensor.negInf, "inf")}
                {cell(tensor.zero, "")}
                {cell(tensor.numel, "")}
                <td>{tensor.rows}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      <More n={inputs.more + outputs.more} noun="tensor" />
    </>
  );
}

export function Experiments({ cause }: { cause: Cause }) {
  const { items, more } = cause.experiments;
  if (!items.length) return null;
  const judged = items.filter((one) => one.confirms !== null);
  const confirm = judged.filter((one) => one.confirms).length;
  const said = judged.length ? `, ${confirm} of ${judged.length} confirm the cause` : "";
  return (
    <details class="printed">
      <summary>
        {counted(items.length + more, "experiment")}
        <span class="soft">{said}</span>
      </summary>
      <table class="stacked">
        <thead>
          <tr>
            <th scope="col">What was changed</th>
            <th scope="col">What came of it</th>
            <th scope="col">Verdict</th>
          </tr>
        </thead>
        <tbody>
          {items.map((one, i) => (
            <tr key={i}>
              <td>{one.name}</td>
              <td>{one.outcome}</td>
              <td class={one.confirms ? "good" : "soft"}>
                {one.confirms === null ? "" : one.confirms ? "\u2713 confirms" : "does not confirm"}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <More n={more} noun="experiment" />
      {cause.time && <p class="soft">{cause.time}</p>}
    </details>
  );
}

export function PathTable({ path }: { path: Bounded<Place> }) {
  if (!path.items.length) return null;
  return (
    <details>
      <summary>{counted(path.items.length + path.more, "operation")} on the path to the sink</summary>
      <Wide name="Path to the sink">
        <table>
          <thead>
            <tr>
              <th scope="col">Operation</th>
              <th scope="col">Result</th>
              <th scope="col">Line</th>
              <th scope="col">Source</th>
            </tr>
          </thead>
          <tbody>
            {path.items.map((one, i) => (
              <tr key={i}>
                <th scope="row"><code>{one.op}</code></th>
                <td class={stateOfText(one.text)}>{one.text}</td>
                <td class="mono">{one.place}</td>
                <td class="mono">{one.source}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      <More n={path.more} noun="operation" />
    </details>
  );
}

export function Gradients({ gradients }: { gradients: NonNullable<Story["gradients"]> }) {
  const { bad, clean, text } = gradients;
  if (!bad.items.length) return <p>Gradients: {text}</p>;
  return (
    <details>
      <summary>
        {counted(bad.items.length + bad.more, "gradient")} not finite<span class="soft">, {grouped(clean)} finite</span>
      </summary>
      <Wide name="Gradients that are not finite">
        <table>
          <thead>
            <tr>
              <th scope="col">Gradient of</th>
              <th scope="col" class="n">NaN</th>
              <th scope="col" class="n">Inf</th>
              <th scope="col" class="n">Values</th>
            </tr>
          </thead>
          <tbody>
            {bad.items.map((one, i) => (
              <tr key={i}>
                <th scope="row"><code>{one.name}</code></th>
                {cell(one.nan, "nan")}
                {cell(one.inf, "inf")}
                {cell(one.numel, "")}
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      <More n={bad.more} noun="gradient" />
    </details>
  );
}

const SHOWN = 400;

export function Operations({ operations }: { operations: Bounded<Operation> }) {
  const [words, setWords] = useState("");
  const [onlyBad, setOnlyBad] = useState(false);
  const texts = useMemo(
    () => operations.items.map((one) => [one.op, one.phase, one.where, one.inputs, one.outputs].join(" ").toLowerCase()),
    [operations],
  );
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = operations.items
    .map((one, i) => ({ one, i }))
    .filter(({ one, i }) => (!onlyBad || one.bad) && wanted.every((word) => texts[i]?.includes(word)));
  return (
    <>
      <div class="filter">
        <label>
          Filter <input type="search" placeholder="operation, file, module, phase" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
        </label>
        <label>
          <input type="checkbox" checked={onlyBad} onChange={(event) => setOnlyBad(event.currentTarget.checked)} /> only with NaN or Inf
        </label>
        <span class="soft" role="status">{`${grouped(found.length)} of ${grouped(operations.items.length)}`}</span>
      </div>
      <Wide name="Operations of the step">
        <table>
          <thead>
            <tr>
              <th scope="col" class="n">No.</th>
              <th scope="col">Operation</th>
              <th scope="col">Phase</th>
              <th scope="col">Where</th>
              <th scope="col">Inputs</th>
              <th scope="col">Outputs</th>
              <th scope="col" class="n">Growth</th>
              <th scope="col" class="n">Micro-batch</th>
            </tr>
          </thead>
          <tbody>
            {found.slice(0, SHOWN).map(({ one, i }) => (
              <tr key={i} class={one.bad ? "bad" : ""}>
                <td class="n">{i}</td>
                <th scope="row"><code>{one.op}</code></th>
                <td>{one.phase}</td>
                <td>{one.where}</td>
                <td>{one.inputs}</td>
                <td>{one.outputs}</td>
                <td class="n">{real(one.growth)}</td>
                <td class="n">{one.microBatch ?? "\u2013"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      {found.length > SHOWN && <p class="soft">The first {SHOWN} are shown: filter for the others.</p>}
      <More n={operations.more} noun="operation" />
    </>
  );
}
