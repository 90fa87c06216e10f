// Builds one file, script and style inline, allowed by a policy that names their hashes: dist/page.html, of a report, which
// src/show/page.cpp fills in, or with --mode timeline dist/timeline.html, which python/finitude/live/page.py fills in.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

interface Page {
  source: string;
  file: string;
  marks: string[]; // what is filled in
  connects: boolean; // to the server that it comes from
}

const REPORT: Page = { source: "index.html", file: "page.html", marks: ["@@title@@", "@@terminal@@", "@@report@@"], connects: false };
const TIMELINE: Page = { source: "timeline.html", file: "timeline.html", marks: ["@@title@@", "@@data@@"], connects: true };

const hash = (text: string) => `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;

// Of both pages.
const HEAD = readFileSync("head.html", "utf8");

// The file is cut into parts for a C++ compiler: a character of several bytes would be cut as well.
const ascii = (code: string) =>
  code.replace(/[^\x00-\x7f]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);

function policy(script: string, style: string, connects: boolean): string {
  const rules = [
    "default-src 'none'",
    `script-src ${hash(script)}`,
    `style-src ${hash(style)}`,
    ...(connects ? ["connect-src 'self'"] : []),
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ];
  return `<meta http-equiv="Content-Security-Policy" content="${rules.join("; ")}">`;
}

// Of what is in the script, as their licences ask.
const notices = ["preact", "uplot"]
  .map((name) => `${name}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}`)
  .join("\n\n")
  .replace(/--+/g, "-");

function oneFile(made: Page): Plugin {
  return {
    name: "one-file",
    enforce: "post",
    generateBundle(_options, bundle) {
      let page = "";
      let script = "";
      let style = "";
      for (const [name, output] of Object.entries(bundle)) {
        if (output.type === "chunk") script += ascii(output.code.trim());
        else if (name.endsWith(".css")) style += String(output.source).trim();
        else if (name.endsWith(".html")) page = String(output.source);
        else this.error(`${name} does not fit into one file`);
        delete bundle[name];
      }
      if (/[^\x00-\x7f]/.test(style)) this.error("the style is not ASCII");
      if (/<\/script|<!--/i.test(script)) this.error("the script would end early");
      page = page
        .replace("<!--head-->\n", () => HEAD)
        .replace(/<script type="module"[^>]*><\/script>\s*/, "")
        .replace(/<link rel="stylesheet"[^>]*>\s*/, "")
        .replace("<!--policy-->", () => policy(script, style, made.connects))
        .replace("</head>", () => `<style>${style}</style>\n</head>`)
        .replace("</body>", () => `<script>${script}</script>\n</body>`)
        .replace("</html>", () => `</html>\n<!--\n${ascii(notices)}\n-->`);
      for (const mark of made.marks) {
        if (page.split(mark).length !== 2) this.error(`${mark} has to be in the page once`);
      }
      this.emitFile({ type: "asset", fileName: made.file, source: page });
    },
  };
}

export default defineConfig(({ mode }) => {
  const made = mode === "timeline" ? TIMELINE : REPORT;
  return {
    plugins: [oneFile(made)],
    build: {
      target: "es2022",
      modulePreload: false,
      cssCodeSplit: false,
      assetsInlineLimit: 0,
      emptyOutDir: false,
      rollupOptions: { input: made.source, output: { format: "iife" as const } },
    },
    test: { include: ["src/**/*.test.ts"] },
  };
});
