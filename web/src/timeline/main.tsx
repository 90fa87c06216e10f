import { render } from "preact";
import "../style/theme.css";
import "../style/timeline.css";
import { Live } from "./live";
import { still } from "./still";
import { Timeline } from "./view";

const target = document.getElementById("page");
const given = still(document.getElementById("timeline")?.textContent);

function Alone() {
  if (!given) return <Live />;
  return (
    <div class="alone">
      <header>
        <p class="name">Finitude timeline</p>
        <h1>{given.runs[0]?.name}</h1>
      </header>
      <main>
        <Timeline runs={given.runs} maps={given.maps} level="h2" />
      </main>
    </div>
  );
}

if (target) render(<Alone />, target);
