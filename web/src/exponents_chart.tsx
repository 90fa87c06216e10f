import type { Tensor } from "./document";
import { axisOf, bars, headroom, height, limitsOf, position, type Axis } from "./exponents";
import { grouped } from "./words";

const HIGH = 92;
const BASE = 104;
const BESIDE = 34; // of a bar beside the axis: zeros, Inf, NaN

function Beside({ x, name, count, largest, kind }: { x: number; name: string; count: number; largest: number; kind: string }) {
  const tall = height(count, largest) * HIGH;
  return (
    <g class={`beside ${kind}`}>
      {count > 0 && <rect x={x - 7} y={BASE - tall} width={14} height={tall} rx={1.5} />}
      {count > 0 && (
        <text x={x} y={BASE - tall - 5} text-anchor="middle" class="count">
          {grouped(count)}
        </text>
      )}
      <text x={x} y={BASE + 15} text-anchor="middle">
        {name}
      </text>
    </g>
  );
}

function ticks(axis: Axis): number[] {
  const span = axis.high - axis.low;
  const step = [1, 2, 4, 8, 16, 32, 64, 128, 256].find((one) => span / one <= 6) ?? 512;
  const out: number[] = [];
  for (let at = Math.ceil(axis.low / step) * step; at < axis.high; at += step) out.push(at);
  return out;
}

export function summary(tensor: Tensor): string {
  const exponents = tensor.exponents;
  const name = tensor.name || "operand";
  if (!exponents?.counts.length) return `${name}: ${tensor.zero ? `${grouped(tensor.zero)} zeros, ` : ""}no other finite value`;
  const top = exponents.first + exponents.counts.length - 1;
  const words = [`${name}: magnitudes from 2^${exponents.first} to 2^${top}`];
  if (tensor.zero) words.push(`${grouped(tensor.zero)} zeros`);
  const far = headroom(exponents, limitsOf(tensor.dtype));
  return [...words, ...(far ? [far] : [])].join(", ");
}

export function ExponentsChart({ tensor, width }: { tensor: Tensor; width: number }) {
  const exponents = tensor.exponents;
  if (!exponents) return null;
  const limits = limitsOf(tensor.dtype);
  const axis = axisOf(exponents, limits);
  const beside = [tensor.inf + tensor.negInf, tensor.nan].filter((n) => n > 0).length;
  const left = BESIDE + 10;
  const right = width - 8 - beside * BESIDE;
  const at = (exponent: number) => left + position(axis, exponent) * (right - left);
  const shown = bars(exponents, Math.max(8, Math.floor((right - left) / 4)));
  const largest = Math.max(1, tensor.zero, tensor.inf + tensor.negInf, tensor.nan, ...shown.map((bar) => bar.count));
  const edges = limits ? [limits.smallest, limits.normal, limits.largest + 1] : [];
  return (
    <svg class="exponents" viewBox={`0 0 ${width} 146`} width={width} height={146} role="img" aria-label={summary(tensor)}>
      {limits && (
        <rect class="subnormal" x={at(limits.smallest)} y={BASE - HIGH} width={at(limits.normal) - at(limits.smallest)} height={HIGH} />
      )}
      <line class="axis" x1={left} x2={right} y1={BASE} y2={BASE} />
      <g class="bars">
        {shown.map((bar) => {
          const x = at(bar.exponent);
          const wide = Math.max(1.5, at(bar.exponent + bar.powers) - x - 1);
          const tall = height(bar.count, largest) * HIGH;
          const to = bar.exponent + bar.powers;
          return (
            <rect key={bar.exponent} x={x + 0.5} y={BASE - tall} width={wide} height={tall} rx={1}>
              <title>{`${grouped(bar.count)} from 2^${bar.exponent} to 2^${to}`}</title>
            </rect>
          );
        })}
      </g>
      {[axis.low > axis.least ? axis.low : null, axis.high < axis.most ? axis.high : null].map(
        (where) =>
          where !== null && (
            <path key={where} class="break" d={`M${at(where) - 4},${BASE + 5}l4,-10m1,10l4,-10`} />
          ),
      )}
      {ticks(axis).map((exponent) => (
        <g key={exponent} class="tick">
          <line x1={at(exponent)} x2={at(exponent)} y1={BASE} y2={BASE + 4} />
          <text x={at(exponent)} y={BASE + 16} text-anchor="middle">
            2<tspan dy="-4" class="power">{String(exponent).replace("-", "\u2212")}</tspan>
          </text>
        </g>
      ))}
      {edges.map((edge) => (
        <line key={edge} class="limit" x1={at(edge)} x2={at(edge)} y1={BASE - HIGH - 2} y2={BASE} />
      ))}
      {limits && (
        <g class="limits">
          <text x={at(limits.smallest)} y={BASE + 36}>
            subnormal
          </text>
          <text x={at(limits.largest + 1)} y={BASE + 36} text-anchor="end">
            {`largest ${limits.name}`}
          </text>
        </g>
      )}
      <Beside x={left - 24} name="0" count={tensor.zero} largest={largest} kind="zero" />
      {tensor.inf + tensor.negInf > 0 && (
        <Beside x={right + BESIDE / 2 + 4} name="Inf" count={tensor.inf + tensor.negInf} largest={largest} kind="inf" />
      )}
      {tensor.nan > 0 && (
        <Beside x={right + BESIDE * (beside - 0.5) + 4} name="NaN" count={tensor.nan} largest={largest} kind="nan" />
      )}
    </svg>
  );
}
