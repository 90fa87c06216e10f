// One story: what went wrong in a step, why, and what to change.
import type { Birth, Fix, Story as StoryData, Tensor } from "./document";
import { kindOf } from "./diff";
import { headroom, limitsOf } from "./exponents";
import { ExponentsChart } from "./exponents_chart";
import { FlowPicture } from "./flow_picture";
import { useWidth } from "./measured";
import { At, Copyable, Heading, More, Section, Source, Tag, type Level } from "./parts";
import { Series } from "./series";
import { Experiments, Gradients, PathTable, TensorTable } from "./tables";
import { capitalised, firstSentence } from "./words";

const deeper = (level: Level): Level => (level === 2 ? 3 : 4);

function Diff({ lines }: { lines: string[] }) {
  return (
    <Copyable text={`${lines.join("\n")}\n`} name="the diff">
      <pre class="diff">
        {lines.map((line, i) => (
          <span key={i} class={kindOf(line)}>{`${line}\n`}</span>
        ))}
      </pre>
    </Copyable>
  );
}

function FixText({ fix }: { fix: Fix }) {
  return (
    <>
      <p class="lead">{capitalised(fix.text)}</p>
      <Tag text={fix.tag} good={fix.verified} />
      {fix.diff.length > 0 && <Diff lines={fix.diff} />}
    </>
  );
}

function CauseAndFix({ story, id, level }: { story: StoryData; id: string; level: Level }) {
  const { cause, fix } = story;
  return (
    <section class="answer" id={id}>
      {cause && (
        <div>
          <Heading level={level}>Cause</Heading>
          <p class="lead">{capitalised(cause.text)}</p>
          <Tag text={cause.tag} good={cause.proven} />
        </div>
      )}
      {fix && (
        <div>
          <Heading level={level}>Fix</Heading>
          <FixText fix={fix} />
        </div>
      )}
      {story.wayBack && (
        <div>
          <Heading level={level}>Way back</Heading>
          <p>{capitalised(story.wayBack)}</p>
        </div>
      )}
    </section>
  );
}

function BirthLines({ birth }: { birth: Birth }) {
  const { where, userFrame, forward, absorbedBy } = birth;
  return (
    <>
      <p>
        <code class="born">{birth.bornAt}</code>
        {birth.backwardOf && (
          <>
            {" "}
            backward of <code>{birth.backwardOf}</code>
            {birth.backwardText && `, ${birth.backwardText}`}
          </>
        )}{" "}
        <At place={where} />
      </p>
      <Source place={where} around={birth.around} />
      {userFrame && (
        <>
          <p class="soft">reached from <At place={userFrame} /></p>
          <Source place={userFrame} />
        </>
      )}
      {forward && (
        <>
          <p class="soft">forward: <At place={forward} /></p>
          <Source place={forward} />
        </>
      )}
      {absorbedBy && (
        <>
          <p class="soft">its forward value was hidden by <code>{absorbedBy.op}</code> <At place={absorbedBy} /></p>
          <Source place={absorbedBy} />
        </>
      )}
      {birth.samples && <p>{capitalised(birth.samples)}</p>}
      {birth.scalars.length > 0 && <p class="soft mono">with {birth.scalars.join(", ")}</p>}
    </>
  );
}

export function OtherBirth({ birth, open }: { birth: Birth; open?: boolean }) {
  return (
    <details open={open ?? false}>
      <summary>
        {capitalised(birth.phase)}: <code>{birth.bornAt}</code> <span class="soft">{birth.where.place}</span>
      </summary>
      <BirthLines birth={birth} />
      <TensorTable inputs={birth.inputs} outputs={birth.outputs} />
    </details>
  );
}

function Powers({ text }: { text: string }) {
  return <>{text.split(/\^(-?\d+)/).map((part, i) => (i % 2 ? <sup key={i}>{part}</sup> : part))}</>;
}

function Exponents({ tensors }: { tensors: Tensor[] }) {
  const [ref, width] = useWidth<HTMLDivElement>(600);
  const columns = width >= 720 && tensors.length > 1 ? 2 : 1;
  const each = Math.floor((width - (columns - 1) * 32) / columns);
  return (
    <div class={`histograms columns-${columns}`} ref={ref}>
      {tensors.map((tensor, i) => (
        <figure key={i}>
          <figcaption>
            <code>{tensor.name || `operand ${i + 1}`}</code> <span class="soft">{tensor.type}</span>
            {tensor.exponents && <p class="soft"><Powers text={capitalised(headroom(tensor.exponents, limitsOf(tensor.dtype)))} /></p>}
          </figcaption>
          <ExponentsChart tensor={tensor} width={each} />
        </figure>
      ))}
    </div>
  );
}

const stepsOf = (story: StoryData, quantity: string) =>
  story.cause?.onsets.find((onset) => onset.quantity === quantity)?.steps ?? null;

export interface Part {
  id: string;
  title: string;
}

const withExponents = (story: StoryData) =>
  (story.births.items[0]?.inputs.items ?? []).filter((tensor) => tensor.exponents !== null).slice(0, 4);

const hasEvidence = (story: StoryData) =>
  (story.cause?.experiments.items.length ?? 0) > 0 ||
  story.births.items.length > 1 ||
  story.gradients !== null ||
  story.buffers + story.repeats !== "";

// What a story has, in order: for the list of contents, and for the story itself.
export function partsOf(story: StoryData, id: string): Part[] {
  const part = (name: string, title: string, there: boolean) => (there ? [{ id: `${id}-${name}`, title }] : []);
  return [
    ...part("answer", "Cause and fix", story.cause !== null || story.fix !== null || story.wayBack !== ""),
    ...part("flow", "Flow of data", story.births.items.length > 0),
    ...part("source", "Source and values", story.births.items.length > 0),
    ...part("exponents", "Magnitudes", withExponents(story).length > 0),
    ...part("evidence", "Evidence", hasEvidence(story)),
    ...part("history", "Before the alarm", Math.max(story.loss.length, story.gradient.length) > 1),
    ...part("again", "Run it again", story.capsule !== "" || story.rerun !== ""),
  ];
}

export function Story({ story, id, titled }: { story: StoryData; id: string; titled: boolean }) {
  const [verdict, rest] = firstSentence(capitalised(story.title));
  const level: Level = titled ? 3 : 2;
  const birth = story.births.items[0];
  const others = story.births.items.slice(1);
  const titles = new Map(partsOf(story, id).map((part) => [part.id.slice(id.length + 1), part.title]));
  const tensors = withExponents(story);
  return (
    <article id={id} aria-label={verdict} class="story">
      {titled && (
        <header>
          <h2>{verdict}</h2>
          {rest && <p class="soft">{rest}</p>}
        </header>
      )}
      {story.onset && <p class="onset">Onset: {capitalised(story.onset)}.</p>}
      {titles.has("answer") && <CauseAndFix story={story} id={`${id}-answer`} level={level} />}
      {birth && (
        <Section id={`${id}-flow`} title={titles.get("flow") ?? ""} level={level}>
          <FlowPicture story={story} name="Flow of data from the operands to the sink" />
          <PathTable path={story.path} />
        </Section>
      )}
      {birth && (
        <Section id={`${id}-source`} title={titles.get("source") ?? ""} level={level}>
          <BirthLines birth={birth} />
          <TensorTable inputs={birth.inputs} outputs={birth.outputs} />
        </Section>
      )}
      {tensors.length > 0 && (
        <Section id={`${id}-exponents`} title={titles.get("exponents") ?? ""} level={level}>
          <p class="soft">How many values each operand has from one power of two to the next. Heights are logarithmic.</p>
          <Exponents tensors={tensors} />
        </Section>
      )}
      {titles.has("evidence") && (
        <Section id={`${id}-evidence`} title={titles.get("evidence") ?? ""} level={level}>
          {story.cause && <Experiments cause={story.cause} />}
          {story.gradients && <Gradients gradients={story.gradients} />}
          {story.buffers && <p>Buffers: {story.buffers}</p>}
          {story.repeats && <p>{capitalised(story.repeats)}</p>}
          {others.length > 0 && (
            <div class="also">
              <Heading level={deeper(level)}>Also born</Heading>
              {others.map((other, i) => (
                <OtherBirth key={i} birth={other} />
              ))}
            </div>
          )}
          <More n={story.births.more} noun="birth" />
        </Section>
      )}
      {titles.has("history") && (
        <Section id={`${id}-history`} title={titles.get("history") ?? ""} level={level}>
          <div class="pair">
            {story.loss.length > 1 && <Series name="Loss" values={story.loss} onset={stepsOf(story, "loss")} />}
            {story.gradient.length > 1 && (
              <Series name="Largest gradient" values={story.gradient} onset={stepsOf(story, "gradient")} />
            )}
          </div>
        </Section>
      )}
      {titles.has("again") && (
        <Section id={`${id}-again`} title={titles.get("again") ?? ""} level={level}>
          {story.rerun && <p>Second run: {story.rerun}.</p>}
          {story.capsuleNote && (
            <Copyable text={story.capsuleNote} name="the command">
              <pre class="command">{story.capsuleNote}</pre>
            </Copyable>
          )}
          {story.capsule && !story.capsuleNote.includes(story.capsule) && <p class="mono soft">{story.capsule}</p>}
        </Section>
      )}
    </article>
  );
}
