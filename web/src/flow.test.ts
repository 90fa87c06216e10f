import { describe, expect, test } from "vitest";
import { flowNodes, layOut, NARROW, stateOfTensor, stateOfText } from "./flow";
import { all, place, story, tensor } from "./samples";

const kinds = (of: ReturnType<typeof flowNodes>) => of.map((node) => node.kind);

test("NaN outranks Inf in a tensor", () => {
  expect(stateOfTensor(tensor({ nan: 1, inf: 1 }))).toBe("nan");
  expect(stateOfTensor(tensor({ negInf: 1 }))).toBe("inf");
  expect(stateOfTensor(tensor())).toBe("finite");
});

test("the result of an equation decides its state", () => {
  expect(stateOfText("0 x -Inf = NaN")).toBe("nan");
  expect(stateOfText("exp(100) = Inf")).toBe("inf");
  expect(stateOfText("4 NaN")).toBe("nan");
  expect(stateOfText("NaNny")).toBe("unknown");
});

test("nodes run from operands to the sink", () => {
  const nodes = flowNodes(story({ inputs: all([tensor(), tensor({ name: "other" })]) }, [place({ text: "1 NaN" })]));
  expect(kinds(nodes)).toEqual(["operand", "operand", "operation", "output", "step", "sink"]);
  expect(nodes.map((node) => node.state)).toEqual(["finite", "finite", "inf", "inf", "nan", "nan"]);
});

test("the title says what the sink holds where the path does not", () => {
  const titled = (title: string) => flowNodes({ ...story({}, [place({ text: "" })]), title }).at(-1)?.state;
  expect(titled("Step 3 stopped before the optimizer: loss is NaN (rank 0)")).toBe("nan");
  expect(titled("Step 3 applied: loss is Inf")).toBe("inf");
  expect(titled("Step 3 skipped: gradient of NaN is not finite")).toBe("unknown");
});

test("an alarm without a birth has no picture", () => {
  expect(flowNodes(story(null, []))).toEqual([]);
  expect(layOut([], 800).height).toBe(0);
});

test("long paths keep their ends and their length", () => {
  const path = Array.from({ length: 20 }, (_, i) => place({ op: `op${i}` }));
  const labels = flowNodes(story({}, path, 180)).map((node) => node.label);
  expect(labels.slice(3)).toEqual(["op0", "op1", "op2", "op3", "193 more", "op17", "op18", "op19", "loss"]);
});

test("many operands share one box", () => {
  const inputs = all(Array.from({ length: 9 }, () => tensor()), 3);
  const nodes = flowNodes(story({ inputs }, []));
  expect(nodes.filter((node) => node.kind === "operand").length).toBe(7);
  expect(nodes[6]?.label).toBe("6 more operands");
});

describe.each([320, NARROW - 1, NARROW, 1000])("a layout %i wide", (width) => {
  const nodes = flowNodes(story({ inputs: all([tensor(), tensor(), tensor()]) }, [place(), place()]));
  const flow = layOut(nodes, width);

  test("keeps every box inside", () => {
    for (const box of flow.boxes) {
      expect(box.x).toBeGreaterThanOrEqual(0);
      expect(box.x + box.width).toBeLessThanOrEqual(width);
      expect(box.y).toBeGreaterThanOrEqual(0);
      expect(box.y + box.height).toBeLessThanOrEqual(flow.height);
    }
  });

  test("lets no two boxes overlap", () => {
    for (const [i, a] of flow.boxes.entries()) {
      for (const b of flow.boxes.slice(i + 1)) {
        const apart = a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y || b.y + b.height <= a.y;
        expect(apart, `${a.node.label} and ${b.node.label}`).toBe(true);
      }
    }
  });

  test("joins every box with the next", () => {
    expect(flow.edges.length).toBe(flow.boxes.length - 1);
  });
});
