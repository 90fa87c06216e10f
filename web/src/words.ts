// Small changes of form to sentences that the report brings along.
import type { Real } from "./document";

export const capitalised = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

// "Step 3 stopped: loss is NaN. Weights are clean." -> the first sentence, and what follows it.
export function firstSentence(text: string): [string, string] {
  const end = /[.]\s+(?=[A-Z])/.exec(text);
  if (!end) return [text.replace(/[.]$/, ""), ""];
  return [text.slice(0, end.index), text.slice(end.index + end[0].length)];
}

// "verified on this step: loss and gradients finite" -> what fits a badge, and what explains it.
export function badgeAndDetail(tag: string): [string, string] {
  const colon = tag.indexOf(": ");
  return colon < 0 ? [tag, ""] : [tag.slice(0, colon), tag.slice(colon + 2)];
}

export const grouped = (value: number): string => value.toLocaleString("en-US");

export function real(value: Real): string {
  if (value === null) return "\u2013";
  if (typeof value === "string") return value.replace("-", "\u2212");
  return Number(value.toPrecision(4)).toString().replace("-", "\u2212");
}

export const counted = (n: number, noun: string): string => `${grouped(n)} ${noun}${n === 1 ? "" : "s"}`;

// The start of a text, or its end (paths), in at most `most` characters.
export const cut = (text: string, most: number): string =>
  text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}\u2026`;
export const cutLeft = (text: string, most: number): string =>
  text.length <= most ? text : `\u2026${text.slice(text.length - Math.max(1, most - 1))}`;
