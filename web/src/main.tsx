import { render } from "preact";
import { App } from "./app";
import type { PageDocument } from "./document";
import "./style/theme.css";
import "./style/frame.css";
import "./style/story.css";
import "./style/tables.css";
import "./style/pictures.css";
import "./style/run.css";
import "./style/timeline.css";
import "./style/print.css";
import { still } from "./timeline/still";

const target = document.getElementById("page");
const data = document.getElementById("report");
const timeline = still(document.getElementById("timeline")?.textContent);
if (target && data) render(<App page={JSON.parse(data.textContent ?? "{}") as PageDocument} still={timeline} />, target);
