// The birth as a picture of data flow: which nodes it has, and where they lie. Pure: sizes in, coordinates out.
import type { Bounded, Place, Story, Tensor } from "./document";
import { counted, grouped } from "./words";

export type State = "finite" | "inf" | "nan" | "unknown";

export interface FlowNode {
  kind: "operand" | "operation" | "output" | "step" | "gap" | "sink";
  label: string;
  under: string; // second line: type or place
  said: string; // what is wrong with it
  code: string; // of an operation: its line
  state: State;
  values: string[]; // for the tooltip
}

export interface Box {
  node: FlowNode;
  x: number;
  y: number;
  width: number;
  height: number;
  row: boolean; // a row of the rail, with its marker at x, instead of a box
}

export interface Edge {
  from: [number, number];
  to: [number, number];
  state: State;
}

export interface Flow {
  width: number;
  height: number;
  boxes: Box[];
  edges: Edge[];
}

export const NARROW = 640;
const BOX = 60;
const OPERATION = 84;
const ROW = 44;
const GAP = 14;
const MARKER = 9; // where markers of the rail lie, from its left
const FIRST = 4;
const LAST = 3;
const OPERANDS = 6;

export function stateOfTensor(tensor: Tensor): State {
  if (tensor.nan > 0) return "nan";
  if (tensor.inf + tensor.negInf > 0) return "inf";
  return "finite";
}

// "0 x -Inf = NaN", "4 NaN": what came out last is what counts.
export function stateOfText(text: string): State {
  const result = text.slice(text.lastIndexOf("=") + 1);
  if (/\bNaN\b/.test(result)) return "nan";
  if (/\bInf\b/.test(result)) return "inf";
  return "unknown";
}

// "Step 3 stopped before the optimizer: loss is NaN", of the sink "loss".
function stateInTitle({ title, sink }: Story): State {
  const at = title.indexOf(`${sink} is `);
  return at < 0 ? "unknown" : stateOfText(/^\w+/.exec(title.slice(at + sink.length + 4))?.[0] ?? "");
}

function badOf(tensor: Tensor): string {
  const words: string[] = [];
  if (tensor.nan) words.push(`${grouped(tensor.nan)} NaN`);
  if (tensor.inf) words.push(`${grouped(tensor.inf)} Inf`);
  if (tensor.negInf) words.push(`${grouped(tensor.negInf)} \u2212Inf`);
  if (!words.length && tensor.zero) words.push(counted(tensor.zero, "zero"));
  return words.join(", ");
}

function tensorNode(kind: "operand" | "output", tensor: Tensor, label: string): FlowNode {
  return {
    kind,
    label,
    under: tensor.type,
    said: badOf(tensor),
    code: "",
    state: stateOfTensor(tensor),
    values: tensor.values,
  };
}

function stepNode(place: Place): FlowNode {
  const values = [place.place, place.source, place.module && `in ${place.module}`].filter(Boolean);
  return {
    kind: "step",
    label: place.op,
    under: place.place,
    said: place.text,
    code: "",
    state: stateOfText(place.text),
    values,
  };
}

const gap = (more: number): FlowNode => ({
  kind: "gap",
  label: `${grouped(more)} more`,
  under: "",
  said: "",
  code: "",
  state: "unknown",
  values: [],
});

function pathNodes(path: Bounded<Place>): FlowNode[] {
  const all = path.items.map(stepNode);
  if (all.length + path.more <= FIRST + LAST + 1 && path.more === 0) return all;
  return [...all.slice(0, FIRST), gap(all.length + path.more - FIRST - LAST), ...all.slice(-LAST)];
}

export function flowNodes(story: Story): FlowNode[] {
  const birth = story.births.items[0];
  if (!birth) return [];
  const inputs = birth.inputs.items;
  const nodes = inputs
    .slice(0, OPERANDS)
    .map((tensor, i) => tensorNode("operand", tensor, tensor.name || `operand ${i + 1}`));
  const more = inputs.length - nodes.length + birth.inputs.more;
  if (more > 0) {
    nodes.push({ ...gap(more), kind: "operand", label: `${counted(more, "more operand")}`, state: "unknown" });
  }
  const outputs = birth.outputs.items.slice(0, 2);
  const worst = outputs.map(stateOfTensor).find((state) => state !== "finite") ?? "unknown";
  nodes.push({
    kind: "operation",
    label: birth.bornAt || birth.phase,
    under: birth.where.place,
    said: "",
    code: birth.where.source,
    state: worst,
    values: [birth.where.source, ...birth.scalars].filter(Boolean),
  });
  for (const tensor of outputs) nodes.push(tensorNode("output", tensor, tensor.name || "output"));
  nodes.push(...pathNodes(story.path));
  if (story.sink) {
    const end = nodes[nodes.length - 1];
    const before = end && end.kind !== "operation" && end.kind !== "gap" ? end.state : "unknown";
    const state = before === "unknown" ? stateInTitle(story) : before;
    nodes.push({ kind: "sink", label: story.sink, under: "where it was noticed", said: "", code: "", state, values: [] });
  }
  return nodes;
}

const isRail = (node: FlowNode): boolean => node.kind !== "operand" && node.kind !== "operation";

// Operands, then the operation, then a rail from its output to the sink: side by side, or below each other where it
// is narrow.
export function layOut(nodes: FlowNode[], width: number): Flow {
  const operands = nodes.filter((node) => node.kind === "operand");
  const operation = nodes.find((node) => node.kind === "operation");
  const rail = nodes.filter(isRail);
  const boxes: Box[] = [];
  const edges: Edge[] = [];
  if (!operation) return { width, height: 0, boxes, edges };
  const wide = width >= NARROW;
  const column = wide ? Math.round(width * 0.28) : width;
  const between = wide ? Math.round(width * 0.06) : GAP + 8;
  const stacked = operands.length * BOX + Math.max(0, operands.length - 1) * GAP;
  const tall = operation.code ? OPERATION : BOX;
  const middle = wide ? Math.max(stacked, tall) / 2 : 0;
  const top = wide ? middle - stacked / 2 : 0;
  operands.forEach((node, i) => {
    boxes.push({ node, x: 0, y: top + i * (BOX + GAP), width: column, height: BOX, row: false });
  });
  const x = wide && operands.length ? column + between : 0;
  const y = wide ? middle - tall / 2 : stacked + (operands.length ? between : 0);
  boxes.push({ node: operation, x, y, width: column, height: tall, row: false });
  operands.forEach((node, i) => {
    const centre = top + i * (BOX + GAP) + BOX / 2;
    if (wide) edges.push({ from: [column, centre], to: [x, middle], state: node.state });
    else if (i === operands.length - 1) edges.push({ from: [24, stacked], to: [24, y], state: node.state });
    else edges.push({ from: [24, centre + BOX / 2], to: [24, centre + BOX / 2 + GAP], state: node.state });
  });
  const railX = wide ? x + column + between : 24 - MARKER;
  const railY = wide ? middle - ROW / 2 : y + tall + between / 2;
  rail.forEach((node, i) => {
    boxes.push({ node, x: railX, y: railY + i * ROW, width: width - railX, height: ROW, row: true });
    const centre: [number, number] = [railX + MARKER, railY + i * ROW + ROW / 2];
    if (i > 0) edges.push({ from: [centre[0], centre[1] - ROW], to: centre, state: node.state });
    else if (wide) edges.push({ from: [x + column, middle], to: centre, state: node.state });
    else edges.push({ from: [24, y + tall], to: centre, state: node.state });
  });
  const bottom = Math.max(...boxes.map((box) => box.y + box.height));
  return { width, height: Math.ceil(bottom), boxes, edges };
}
