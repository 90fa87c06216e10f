// Of lines and of the map, in either theme.

export const colour = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

const LIGHT = ["#2a6590", "#b05a00", "#2f7a4d", "#7d4aa5", "#a8324a", "#5c6773", "#007a86", "#7a6600"];
const DARK = ["#83bbe4", "#f2b063", "#7fd3a0", "#c5a3ee", "#ff9aa7", "#a9b4c0", "#5fd0dc", "#d8c45c"];

const rankOf = (label: string) => Number(/^(?:rank|pid)-(\d+)/.exec(label)?.[1] ?? 0);

export const ofLine = (run: number, label: string): string => {
  const all = isDark() ? DARK : LIGHT;
  return all[(Math.max(0, run) + rankOf(label)) % all.length] ?? "#777777";
};

// Dark to bright, as far apart for the eye as the values are.
const STOPS = [
  [68, 1, 84],
  [65, 68, 135],
  [42, 120, 142],
  [34, 168, 132],
  [122, 209, 81],
  [253, 231, 37],
];

export function ofShare(share: number): [number, number, number] {
  const at = Math.max(0, Math.min(1, share)) * (STOPS.length - 1);
  const i = Math.min(STOPS.length - 2, Math.floor(at));
  const [a, b] = [STOPS[i] ?? [0, 0, 0], STOPS[i + 1] ?? [0, 0, 0]];
  return [0, 1, 2].map((k) => Math.round((a[k] ?? 0) + ((b[k] ?? 0) - (a[k] ?? 0)) * (at - i))) as [number, number, number];
}
