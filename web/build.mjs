// node build.mjs OUT.cc: src/ as one HTML page in a C++ file, with the policy that lets nothing but itself run.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const bundle = async (entry) => {
  const options = { bundle: true, minify: true, write: false, target: "es2022", charset: "utf8", legalComments: "none" };
  return (await build({ entryPoints: [entry], ...options })).outputFiles[0].text.trim();
};
const script = await bundle("src/main.ts");
const style = await bundle("src/page.css");
if (/<\/(script|style)/i.test(script + style)) throw new Error("this would end its own element");

// What uPlot's licence (MIT) asks for.
const licence = readFileSync("node_modules/uplot/LICENSE", "utf8").replace(/--+>?/g, "");
const html = readFileSync("src/page.html", "utf8")
  .replace("<!-- STYLE -->", () => `<style>${style}</style>`)
  .replace("<!-- SCRIPT -->", () => `<script type="module">${script}</script>`)
  .replace("<!-- LICENCE -->", () => `<!-- contains uPlot: ${licence.trim()} -->`);

const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
const policy = [
  "default-src 'none'",
  `script-src ${hash(script)}`,
  `style-src ${hash(style)}`,
  "connect-src 'self'",
  "img-src data:",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");

const bytes = Buffer.from(html);
const rows = [];
for (let i = 0; i < bytes.length; i += 32) rows.push([...bytes.subarray(i, i + 32)].join(",") + ",");
writeFileSync(process.argv[2], `// Made by web/build.mjs.
#include "web/page.h"

namespace pgf::web {
namespace {

constexpr unsigned char kHtml[] = {
${rows.join("\n")}
};

}  // namespace

const BuiltPage kPage = {{reinterpret_cast<const char*>(kHtml), sizeof kHtml}, ${JSON.stringify(policy)}};

}  // namespace pgf::web
`);
