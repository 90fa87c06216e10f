// Opens pages in chromium and prints what it found as JSON, a line for each line of its input: one browser serves them all, with a
// context for each view. A line of the input, on stdin: {"chromium": path, "views": [view]}, a view:
// {"file" or "url", "wait": milliseconds, "scheme": "light"|"dark", "width", "height", "scripts": false, "ask": [names of QUESTIONS], "screenshot": path}.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const OPTIONS =
  "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync";

// Every stop of the Tab key: what has the focus, and whether that can be seen.
async function stops(page) {
  const seen = [];
  for (let i = 0; i < 200; ++i) {
    await page.keyboard.press("Tab");
    const stop = await page.evaluate(() => {
      const element = document.activeElement;
      if (!element || element === document.body) return null;
      const style = getComputedStyle(element);
      const drawn = [...element.querySelectorAll(".hit, .card")].map((one) => getComputedStyle(one).stroke);
      const name = element.getAttribute("aria-label") ?? element.textContent ?? "";
      return {
        tag: element.tagName.toLowerCase(),
        name: name.trim().slice(0, 200),
        visible: style.outlineStyle !== "none" || drawn.some((stroke) => stroke !== "none"),
        tooltip: document.querySelector(".tooltip")?.textContent ?? "",
      };
    });
    if (!stop) break;
    seen.push(stop);
  }
  return seen;
}

async function copies(page) {
  const texts = [];
  for (const button of await page.locator("button").all()) {
    await button.click();
    texts.push(await page.evaluate(() => navigator.clipboard.readText()));
  }
  return texts;
}

const QUESTIONS = {
  text: (page) => page.evaluate(() => document.body.innerText),
  html: (page) => page.evaluate(() => document.body.innerHTML),
  scripts: (page) => page.evaluate(() => document.scripts.length),
  headings: (page) =>
    page.evaluate(() => [...document.querySelectorAll("h1, h2, h3, h4")].map((one) => [one.tagName, one.textContent])),
  overflow: (page) => page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth),
  contents: (page) =>
    page.evaluate(() =>
      [...document.querySelectorAll("nav a")].map((one) => [
        one.textContent,
        document.querySelectorAll(one.getAttribute("href")).length,
      ]),
    ),
  axe: async (page) => {
    await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    return violations.map((one) => ({ id: one.id, nodes: one.nodes.map((node) => `${node.html} ${node.failureSummary}`) }));
  },
  stops,
  copies,
  // Of the picture of data flow: each box with its words, the colours and shapes of its state; and the colours of its edges.
  flow: (page) =>
    page.evaluate(() => ({
      boxes: [...document.querySelectorAll(".flow g.node")].map((box) => ({
        name: box.getAttribute("aria-label"),
        states: [...box.querySelectorAll(".marker")].map((one) => [one.classList[1], getComputedStyle(one).fill]),
      })),
      edges: [...document.querySelectorAll(".flow .edge")].map((one) => [one.classList[1], getComputedStyle(one).stroke]),
    })),
  // Of each histogram: how many values its bars say, where the limits of its dtype are drawn, and what it says itself.
  histograms: (page) =>
    page.evaluate(() =>
      [...document.querySelectorAll("svg.exponents")].map((chart) => ({
        name: chart.getAttribute("aria-label"),
        values: [...chart.querySelectorAll(".bars title")].map((one) => Number(one.textContent.replace(/\D.*$/, ""))),
        limits: [...chart.querySelectorAll("line.limit")].map((one) => Number(one.getAttribute("x1")) / chart.viewBox.baseVal.width),
        words: [...chart.querySelectorAll(".limits text")].map((one) => one.textContent.trim()),
      })),
    ),
  sources: (page) =>
    page.evaluate(() =>
      [...document.querySelectorAll("pre.source")].map((source) => ({
        lines: source.querySelectorAll(".line").length,
        marked: [...source.querySelectorAll("mark.line")].map((one) => [one.querySelector(".number").textContent, one.querySelector("code").textContent]),
        colour: getComputedStyle(source.querySelector("mark.line") ?? source).backgroundColor,
        other: getComputedStyle(source).backgroundColor,
      })),
    ),
  // What of the table of experiments is shown: folded, after a click on its summary, and on paper, folded again.
  folds: async (page) => {
    const table = page.locator("details", { has: page.getByText("What was changed") }).first();
    const shown = () => table.locator("tbody tr").filter({ visible: true }).count();
    const found = [await shown()];
    await table.locator("summary").click();
    found.push(await shown());
    await table.locator("summary").click();
    await page.emulateMedia({ media: "print" });
    found.push(await shown());
    await page.emulateMedia({ media: "screen" });
    return found;
  },
  // What the page's policy lets a script that got into it do.
  intrusion: (page) =>
    page.evaluate(async () => {
      const script = document.createElement("script");
      try {
        script.textContent = "globalThis.intruded = true";
      } catch {
        script.append("globalThis.intruded = true"); // past the trusted types
      }
      document.body.append(script);
      const style = document.createElement("img");
      style.src = "data:image/gif;base64,R0lGODlhAQABAAAAACw=";
      const loaded = new Promise((done) => {
        style.onload = () => done(true);
        style.onerror = () => done(false);
      });
      document.body.append(style);
      const fetched = await fetch("http://127.0.0.1:9/").then(
        () => "fetched",
        (error) => error.name,
      );
      return [globalThis.intruded ?? false, await loaded, fetched, document.querySelector("meta[http-equiv]").content];
    }),
  // Milliseconds from the navigation until the charts of a timeline are drawn, and of moves: from a key to the next frame.
  paint: (page) => page.evaluate(() => performance.getEntriesByName("timeline")[0]?.startTime ?? null),
  moves: (page) =>
    page.evaluate(async () => {
      const charts = document.querySelector(".charts");
      const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
      const press = (key) => charts.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      press("+");
      press("+");
      await frame();
      const times = [];
      for (let i = 0; i < 30; ++i) {
        const start = performance.now();
        press(i % 20 < 10 ? "ArrowRight" : "ArrowLeft");
        await frame();
        times.push(performance.now() - start);
      }
      return times;
    }),
  shown: (page) =>
    page.evaluate(() => [...document.querySelectorAll(".chart")].map((one) => one.querySelector("[role=img]").getAttribute("aria-label"))),
  chosen: async (page) => {
    await page.locator(".map canvas").click({ position: { x: 200, y: 3 } });
    return page.evaluate(() => document.querySelector(".parameter h4").textContent);
  },
  // What the map can show, and of each the words under it.
  maps: async (page) => {
    const found = {};
    for (const button of await page.locator('[aria-label="Quantity"] button').all()) {
      await button.click();
      found[await button.textContent()] = (await page.locator(".map .legend").textContent()).trim();
    }
    return found;
  },
  // Pixels of the first map that are not of its background.
  coloured: (page) =>
    page.evaluate(() => {
      const canvas = document.querySelector(".map canvas");
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return data.filter((value, i) => i % 4 === 3 && value === 255).length / (data.length / 4);
    }),
  paper: async (page) => {
    const pdf = await page.pdf({ format: "A4", printBackground: true });
    return Number(/\/Type\s*\/Pages\s*\/Count\s+(\d+)/.exec(pdf.toString("latin1"))[1]);
  },
};

async function look(browser, view) {
  const context = await browser.newContext({
    colorScheme: view.scheme ?? "light",
    viewport: { width: view.width ?? 1280, height: view.height ?? 900 },
    deviceScaleFactor: view.scale ?? 1,
    javaScriptEnabled: view.scripts ?? true,
    permissions: ["clipboard-read", "clipboard-write"],
  });
  const page = await context.newPage();
  const address = view.url ?? pathToFileURL(view.file).href;
  const found = { errors: [], requests: [] };
  page.on("console", (message) => message.type() === "error" && found.errors.push(message.text()));
  page.on("pageerror", (error) => found.errors.push(String(error)));
  page.on("dialog", (dialog) => {
    found.errors.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => request.url() !== address && found.requests.push(request.url()));
  await page.goto(address);
  await page.waitForTimeout(view.wait ?? 300); // until widths are measured and charts are drawn
  for (const name of view.ask ?? []) found[name] = await QUESTIONS[name](page);
  if (view.open) await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
  if (view.hover) await page.locator(view.hover).first().hover();
  if (view.pdf) await page.pdf({ format: "A4", printBackground: true, path: view.pdf });
  if (view.screenshot) await page.screenshot({ path: view.screenshot, fullPage: view.full ?? false });
  await context.close();
  return found;
}

let browser = null;
for await (const line of createInterface({ input: process.stdin })) {
  const { chromium: path, views } = JSON.parse(line);
  browser ??= await chromium.launch({ executablePath: path, args: OPTIONS.split(" ") });
  const answers = [];
  for (const view of views) answers.push(await look(browser, view));
  process.stdout.write(`${JSON.stringify(answers)}\n`);
}
await browser?.close();
