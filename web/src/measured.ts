// The width of an element, kept up to date; of a page that is printed, the width of the paper.
import { useEffect, useRef, useState } from "preact/hooks";

const PAPER = 660;

export function useWidth<T extends HTMLElement>(initial: number) {
  const ref = useRef<T>(null);
  const [width, setWidth] = useState(initial);
  useEffect(() => {
    const element = ref.current;
    if (!element) return undefined;
    const measure = () => setWidth(Math.max(260, Math.floor(element.clientWidth)));
    const paper = matchMedia("print");
    const printed = () => (paper.matches ? setWidth(PAPER) : measure());
    const watcher = new ResizeObserver(() => (paper.matches ? undefined : measure()));
    watcher.observe(element);
    paper.addEventListener("change", printed);
    measure();
    return () => {
      watcher.disconnect();
      paper.removeEventListener("change", printed);
    };
  }, []);
  return [ref, width] as const;
}
