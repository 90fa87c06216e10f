import { render } from "preact";
import { App } from "./app";
import type { PageDocument } from "./document";
import "./style.css";

const target = document.getElementById("page");
const data = document.getElementById("report");
if (target && data) render(<App page={JSON.parse(data.textContent ?? "{}") as PageDocument} />, target);
