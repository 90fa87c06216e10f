import { useState } from "preact/hooks";
import type { Story } from "./document";
import { flowNodes, layOut, type Box, type Edge, type State } from "./flow";
import { useWidth } from "./measured";
import { cut, cutLeft } from "./words";

const STATES: Record<State, string> = { finite: "finite", inf: "Inf", nan: "NaN", unknown: "not finite" };
const MONO = 0.61; // width of a character of the fixed font, in font sizes

// Each state has a shape of its own, so that the picture can be read without its colours.
export function Marker({ x, y, state, size = 6 }: { x: number; y: number; state: State; size?: number }) {
  const s = size;
  if (state === "nan") return <path class="marker nan" d={`M${x},${y - s - 1}l${s + 1},${s + 1}l${-s - 1},${s + 1}l${-s - 1},${-s - 1}z`} />;
  if (state === "inf") return <path class="marker inf" d={`M${x},${y - s}l${s + 0.5},${1.8 * s}h${-2 * s - 1}z`} />;
  if (state === "finite") return <circle class="marker finite" cx={x} cy={y} r={s - 0.5} />;
  return <rect class="marker unknown" x={x - s + 1.5} y={y - s + 1.5} width={2 * s - 3} height={2 * s - 3} rx={1.5} />;
}

function path({ from: [x1, y1], to: [x2, y2] }: Edge): string {
  if (x1 === x2 || y1 === y2) return `M${x1},${y1}L${x2},${y2}`;
  const middle = (x1 + x2) / 2;
  return `M${x1},${y1}C${middle},${y1} ${middle},${y2} ${x2},${y2}`;
}

function spoken(box: Box): string {
  const { kind, label, under, said, state, values } = box.node;
  const role = { operand: "Operand", operation: "Born in", output: "Output", step: "Then", gap: "", sink: "Sink" }[kind];
  const what = kind === "gap" || kind === "operation" ? "" : STATES[state];
  return [`${role} ${label}`.trim(), under, what, said, ...values.filter((value) => value !== under)]
    .filter(Boolean)
    .join(", ");
}

function Row({ box }: { box: Box }) {
  const { node, x, y, width, height } = box;
  const middle = y + height / 2;
  const room = width - 30;
  const said = cut(node.said, Math.floor((room * 0.55) / (12 * MONO)));
  const left = Math.floor((room - said.length * 12 * MONO - 14) / (12.5 * MONO));
  return (
    <>
      <rect class="hit" x={x - 2} y={y + 2} width={width} height={height - 4} rx={5} />
      {node.kind === "gap" ? (
        <text class="dots" x={x + 9} y={middle + 3} text-anchor="middle">
          {"\u22ee"}
        </text>
      ) : (
        <Marker x={x + 9} y={middle} state={node.state} size={node.kind === "sink" ? 7.5 : 6} />
      )}
      <text class="label" x={x + 28} y={node.under ? middle - 3 : middle + 4}>
        {cut(node.label, Math.max(8, left))}
      </text>
      {said && (
        <text class={`said ${node.state}`} x={x + width - 4} y={middle - 3} text-anchor="end">
          {said}
        </text>
      )}
      <text class="under" x={x + 28} y={middle + 13}>
        {cutLeft(node.under, Math.floor(room / (11 * MONO)))}
      </text>
    </>
  );
}

function Card({ box }: { box: Box }) {
  const { node, x, y, width, height } = box;
  const operation = node.kind === "operation";
  const room = width - (operation ? 24 : 40);
  const said = cut(node.said, Math.floor((room * 0.5) / (12 * MONO)));
  const small = Math.floor(room / (11 * MONO));
  const left = x + (operation ? 14 : 38);
  const middle = y + (node.code ? height / 2 - 12 : height / 2);
  const label = cut(node.label, Math.max(6, Math.floor((room - said.length * 12 * MONO - 8) / (12.5 * MONO))));
  return (
    <>
      <rect class={`card ${node.kind} ${node.state}`} x={x + 0.75} y={y + 0.75} width={width - 1.5} height={height - 1.5} rx={7} />
      {!operation && node.values.length > 0 && <Marker x={x + 20} y={y + height / 2} state={node.state} />}
      <text class="label" x={left} y={middle - 4}>
        {label}
      </text>
      {said && (
        <text class={`said ${node.state}`} x={x + width - 12} y={middle - 4} text-anchor="end">
          {said}
        </text>
      )}
      <text class="under" x={left} y={middle + 14}>
        {operation ? cutLeft(node.under, small) : cut(node.under, small)}
      </text>
      {node.code && (
        <text class="under code" x={left} y={middle + 36}>
          {cut(node.code, small)}
        </text>
      )}
    </>
  );
}

function Tooltip({ box, width }: { box: Box; width: number }) {
  const { node } = box;
  const wide = Math.min(300, width);
  const left = Math.max(0, Math.min(box.x, width - wide));
  return (
    <div class="tooltip" style={{ left: `${left}px`, top: `${box.y + box.height + 4}px`, maxWidth: `${wide}px` }} aria-hidden="true">
      <strong>{node.label}</strong>
      {node.under && <span class="mono">{node.under}</span>}
      {node.kind === "step" && node.said && <span class={node.state}>{node.said}</span>}
      {node.values.map((value, i) => (
        <span key={i} class="mono">
          {value}
        </span>
      ))}
    </div>
  );
}

export function FlowPicture({ story, name }: { story: Story; name: string }) {
  const [ref, width] = useWidth<HTMLDivElement>(760);
  const [active, setActive] = useState<number | null>(null);
  const flow = layOut(flowNodes(story), width);
  if (!flow.boxes.length) return null;
  const shown = active === null ? undefined : flow.boxes[active];
  return (
    <div class="flow" ref={ref} onKeyDown={(event) => event.key === "Escape" && setActive(null)}>
      <svg viewBox={`0 0 ${flow.width} ${flow.height}`} width={flow.width} height={flow.height} role="group" aria-label={name}>
        {flow.edges.map((edge, i) => (
          <path key={i} class={`edge ${edge.state}`} d={path(edge)} />
        ))}
        {flow.boxes.map((box, i) => (
          <g
            key={i}
            class="node"
            tabIndex={box.node.kind === "gap" ? -1 : 0}
            role="img"
            aria-label={spoken(box)}
            onMouseEnter={() => setActive(i)}
            onMouseLeave={() => setActive(null)}
            onFocus={() => setActive(i)}
            onBlur={() => setActive(null)}
          >
            {box.row ? <Row box={box} /> : <Card box={box} />}
          </g>
        ))}
      </svg>
      {shown && shown.node.values.length > 0 && <Tooltip box={shown} width={width} />}
      <ul class="legend" aria-label="Shapes of the picture">
        {(["finite", "inf", "nan"] as const).map((state) => (
          <li key={state}>
            <svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">
              <Marker x={9} y={9} state={state} />
            </svg>
            {STATES[state]}
          </li>
        ))}
      </ul>
    </div>
  );
}
