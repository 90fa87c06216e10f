// Builds one file, dist/page.html: script and style inline, allowed by a policy that names their hashes. What a report
// fills in (@@title@@, @@terminal@@, @@report@@) is put there by src/show/page.cpp.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const MARKS = ["@@title@@", "@@terminal@@", "@@report@@"];

const hash = (text: string) => `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;

// The file is cut into parts for a C++ compiler: a character of several bytes would be cut as well.
const ascii = (code: string) =>
  code.replace(/[^\x00-\x7f]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);

function policy(script: string, style: string): string {
  const rules = [
    "default-src 'none'",
    `script-src ${hash(script)}`,
    `style-src ${hash(style)}`,
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

function oneFile(): Plugin {
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
        .replace(/<script type="module"[^>]*><\/script>\s*/, "")
        .replace(/<link rel="stylesheet"[^>]*>\s*/, "")
        .replace("<!--policy-->", () => policy(script, style))
        .replace("</head>", () => `<style>${style}</style>\n</head>`)
        .replace("</body>", () => `<script>${script}</script>\n</body>`)
        .replace("</html>", () => `</html>\n<!--\n${ascii(notices)}\n-->`);
      for (const mark of MARKS) {
        if (page.split(mark).length !== 2) this.error(`${mark} has to be in the page once`);
      }
      this.emitFile({ type: "asset", fileName: "page.html", source: page });
    },
  };
}

export default defineConfig({
  plugins: [oneFile()],
  build: {
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rollupOptions: { output: { format: "iife" } },
  },
  test: { include: ["src/**/*.test.ts"] },
});
