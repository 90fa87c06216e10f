// The width of an element, kept up to date, also where the page is laid out for paper.
import { useEffect, useRef, useState } from "preact/hooks";

export function useWidth<T extends HTMLElement>(initial: number) {
  const ref = useRef<T>(null);
  const [width, setWidth] = useState(initial);
  useEffect(() => {
    const element = ref.current;
    if (!element) return undefined;
    const measure = () => setWidth(Math.max(240, Math.floor(element.clientWidth)));
    const paper = matchMedia("print");
    const watcher = new ResizeObserver(measure);
    watcher.observe(element);
    paper.addEventListener("change", measure);
    measure();
    return () => {
      watcher.disconnect();
      paper.removeEventListener("change", measure);
    };
  }, []);
  return [ref, width] as const;
}
