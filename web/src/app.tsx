import type { Advisory, PageDocument, Story as StoryData } from "./document";
import { More, Section, Tag } from "./parts";
import { OtherBirth, partsOf, Story, type Part } from "./story";
import { Experiments, Operations } from "./tables";
import type { Still } from "./timeline/still";
import { Timeline } from "./timeline/view";
import { capitalised, firstSentence } from "./words";

const idOf = (i: number) => `story-${i + 1}`;

interface Entry extends Part {
  parts: Part[];
}

const NESTED = 6; // with more stories than that the list names only the stories

export function contents(page: PageDocument, hasTimeline: boolean): Entry[] {
  const stories = page.stories.items;
  const single = stories.length === 1 ? stories[0] : undefined;
  const plain = (id: string, title: string, there: boolean): Entry[] => (there ? [{ id, title, parts: [] }] : []);
  const entries: Entry[] = single
    ? partsOf(single, idOf(0)).map((part) => ({ ...part, parts: [] }))
    : stories.map((story: StoryData, i) => ({
        id: idOf(i),
        title: capitalised(firstSentence(story.title)[0]),
        parts: stories.length <= NESTED ? partsOf(story, idOf(i)) : [],
      }));
  return [
    ...entries,
    ...plain("warnings", "Warnings", page.warnings.items.length > 0),
    ...plain("advisories", "Advisories", page.advisories.items.length > 0),
    ...plain("operations", "Operations", page.operations.items.length > 0),
    ...plain("timeline-section", "Timeline", hasTimeline),
    ...plain("run", "Run", true),
  ];
}

function Links({ entries }: { entries: Entry[] }) {
  return (
    <ul>
      {entries.map((entry) => (
        <li key={entry.id}>
          <a href={`#${entry.id}`}>{entry.title}</a>
          {entry.parts.length > 0 && <Links entries={entry.parts.map((part) => ({ ...part, parts: [] }))} />}
        </li>
      ))}
    </ul>
  );
}

function AdvisoryBox({ advisory }: { advisory: Advisory }) {
  return (
    <div class="note">
      <h3>{capitalised(advisory.title)}</h3>
      <p>{capitalised(advisory.text)}</p>
      {advisory.cause && (
        <>
          <p>{capitalised(advisory.cause.text)}</p>
          <Tag text={advisory.cause.tag} good={advisory.cause.proven} />
          <Experiments cause={advisory.cause} />
        </>
      )}
      {advisory.birth && <OtherBirth birth={advisory.birth} />}
    </div>
  );
}

function Run({ page }: { page: PageDocument }) {
  const { counters, notWatched } = page.watched;
  return (
    <Section id="run" title="Run" level={2}>
      <dl class="counters">
        {counters.map((one) => (
          <div key={one.name}>
            <dt>{one.name}</dt>
            <dd>{one.value}</dd>
          </div>
        ))}
      </dl>
      {notWatched.items.map((one, i) => (
        <p key={i}>Not watched: {one}</p>
      ))}
      <More n={notWatched.more} noun="note" />
      <dl class="environment">
        {page.environment.map((one) => (
          <div key={one.name}>
            <dt>{one.name}</dt>
            <dd class="mono">{one.value}</dd>
          </div>
        ))}
      </dl>
    </Section>
  );
}

export function App({ page, still }: { page: PageDocument; still: Still | null }) {
  const [verdict, rest] = firstSentence(capitalised(page.title));
  const stories = page.stories.items;
  return (
    <>
      <a class="skip" href="#content">
        Skip to the report
      </a>
      <div class="frame">
        <header class={`verdict ${page.tone}`}>
          <p class="name">Finitude report</p>
          <h1>{verdict}</h1>
          {rest && <p class="rest">{rest}</p>}
          {page.end && <p class="rest">{capitalised(page.end)}</p>}
        </header>
        <nav aria-label="Contents">
          <Links entries={contents(page, still !== null)} />
        </nav>
        <main id="content" tabIndex={-1}>
          {stories.map((story, i) => (
            <Story key={i} story={story} id={idOf(i)} titled={stories.length > 1} />
          ))}
          <More n={page.stories.more} noun="alarm" />
          {page.warnings.items.length > 0 && (
            <Section id="warnings" title="Warnings" level={2}>
              {page.warnings.items.map((one, i) => (
                <div key={i} class="note">
                  <h3>{capitalised(one.title)}</h3>
                  <p>{capitalised(one.text)}</p>
                </div>
              ))}
              <More n={page.warnings.more} noun="warning" />
            </Section>
          )}
          {page.advisories.items.length > 0 && (
            <Section id="advisories" title="Advisories" level={2}>
              {page.advisories.items.map((one, i) => (
                <AdvisoryBox key={i} advisory={one} />
              ))}
              <More n={page.advisories.more} noun="note" />
            </Section>
          )}
          {page.operations.items.length > 0 && (
            <Section id="operations" title="Operations" level={2}>
              <Operations operations={page.operations} />
            </Section>
          )}
          {still && (
            <Section id="timeline-section" title="Timeline" level={2}>
              <Timeline runs={still.runs} maps={still.maps} level="h3" />
            </Section>
          )}
          <Run page={page} />
        </main>
      </div>
    </>
  );
}
