// Pieces that several sections share.
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import type { Around, Place } from "./document";
import { badgeAndDetail, capitalised, counted } from "./words";

export type Level = 2 | 3 | 4;

export function Heading({ level, children }: { level: Level; children: ComponentChildren }) {
  const Tag = `h${level}` as "h2";
  return <Tag>{children}</Tag>;
}

export function Section({ id, title, level, children }: { id: string; title: string; level: Level; children: ComponentChildren }) {
  return (
    <section id={id}>
      <Heading level={level}>{title}</Heading>
      {children}
    </section>
  );
}

export function More({ n, noun }: { n: number; noun: string }) {
  return n > 0 ? <p class="soft">and {counted(n, `more ${noun}`)} in the JSON report</p> : null;
}

// A table may be wider than a phone: then it scrolls by itself, by keyboard too.
export function Wide({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div class="wide" role="group" aria-label={name} tabIndex={0}>
      {children}
    </div>
  );
}

export function Tag({ text, good }: { text: string; good: boolean }) {
  const [badge, detail] = badgeAndDetail(text);
  if (!badge) return null;
  return (
    <p class="evidence">
      <span class={`badge ${good ? "good" : "warn"}`}>{capitalised(badge)}</span>
      {detail && <span class="soft"> {capitalised(detail)}</span>}
    </p>
  );
}

export function At({ place }: { place: Place }) {
  return (
    <>
      {place.place && <code>{place.place}</code>}
      {place.module && (
        <span class="soft">
          {" "}
          in <code>{place.module}</code>
        </span>
      )}
    </>
  );
}

// One line, or the lines around it as well; the line itself is marked.
export function Source({ place, around }: { place: Place; around?: Around | null }) {
  if (!place.source) return null;
  const lines = around?.lines ?? [place.source];
  const first = around?.first ?? place.line;
  return (
    <pre class="source">
      {lines.map((line, i) => {
        const marked = first + i === place.line;
        const Row = marked ? "mark" : "span";
        return (
          <Row key={i} class="line">
            {first > 0 && <span class="number">{first + i}</span>}
            {marked && <span class="spoken">this line: </span>}
            <code>{line || " "}</code>
          </Row>
        );
      })}
    </pre>
  );
}

function selectText(element: HTMLElement | null): void {
  if (element) getSelection()?.selectAllChildren(element);
}

// Where a page may not write to the clipboard (a frame of a notebook), the text is selected instead.
async function copied(text: string, shown: HTMLElement | null): Promise<string> {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied";
  } catch {
    selectText(shown);
    return document.execCommand("copy") ? "Copied" : "Selected";
  }
}

export function Copyable({ text, name, children }: { text: string; name: string; children: ComponentChildren }) {
  const shown = useRef<HTMLDivElement>(null);
  const [done, setDone] = useState("");
  const copy = async () => {
    setDone(await copied(text, shown.current));
    setTimeout(() => setDone(""), 2000);
  };
  return (
    <div class="copyable">
      <div ref={shown}>{children}</div>
      <button type="button" onClick={() => void copy()} aria-label={`Copy ${name}`}>
        {done || "Copy"}
      </button>
      <span class="spoken" role="status">
        {done}
      </span>
    </div>
  );
}
