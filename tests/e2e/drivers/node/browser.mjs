// A browser for test_web_page.py: a line of JSON in, a line out. {do, …} → {value} or {error}.
import readline from "node:readline";
import { chromium } from "playwright-core";

const browser = await chromium.launch({ executablePath: process.argv[2], args: ["--no-sandbox", "--disable-gpu"] });
let page, seen;
const actions = {
  // A new page; what goes wrong in it is remembered.
  async open({ url, scheme = "light", width = 1280, height = 900, touch = false }) {
    await page?.context().close();
    const context = await browser.newContext({ colorScheme: scheme, viewport: { width, height }, hasTouch: touch,
                                               deviceScaleFactor: touch ? 2 : 1 });
    page = await context.newPage();
    seen = { errors: [], requests: [], dialogs: [] };
    page.on("pageerror", (e) => seen.errors.push(String(e)));
    page.on("console", (m) => m.type() === "error" && seen.errors.push(m.text()));
    page.on("request", (r) => seen.requests.push(r.url()));
    page.on("dialog", (d) => (seen.dialogs.push(d.message()), d.dismiss()));
    await page.goto(url);
  },
  eval: ({ js }) => page.evaluate(js),
  async until({ js, patience = 60_000 }) {  // waitForFunction would use eval, which the page's policy forbids
    for (const end = Date.now() + patience; ; await new Promise((then) => setTimeout(then, 50))) {
      const value = await page.evaluate(`Boolean(${js})`);
      if (value) return value;
      if (Date.now() > end) throw new Error(`this does not become true: ${js}`);
    }
  },
  click: ({ at }) => page.click(at),
  fill: ({ at, text }) => page.fill(at, text),
  select: ({ at, value }) => page.selectOption(at, value),
  press: ({ key }) => page.keyboard.press(key),
  shot: ({ path, full = true }) => page.screenshot({ path, fullPage: full }).then(() => path),
  seen: () => seen,
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await actions[order.do](order)) ?? null };
  } catch (e) {
    answer = { error: String(e) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
await browser.close();
