// Opens /docs in Chromium, and sends the prefilled example of every operation that changes nothing: Try it out, Execute.
// Usage: node docs.mjs URL CHROMIUM. Prints a line for each operation; fails if one is not answered by 200.

import { chromium } from "playwright-core";

const [url, executablePath] = process.argv.slice(2);
const FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
const WITHIN = 120_000;

const document = await (await fetch(`${url}/openapi.json`)).json();
const reading = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods)
    .filter(([, operation]) => !operation.responses["403"]?.description.includes("administrator"))
    .map(([method, operation]) => ({ path, method, tag: operation.tags[0], id: operation.operationId })),
);

const flags = [...FLAGS, "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath, headless: true, args: flags });
let wrong = 0;
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(WITHIN);
  await page.goto(`${url}/docs/`);
  await page.waitForSelector(".opblock");
  for (const { path, method, tag, id } of reading) {
    const block = page.locator(`[id="operations-${tag}-${id}"]`);
    await block.locator(".opblock-summary-control").click();
    await block.locator("button.try-out__btn").click();
    await block.locator("button.execute").click();
    const status = block.locator(".live-responses-table .response-col_status").last();
    const found = (await status.textContent()).trim().split(/\s/)[0];
    console.log(`${found} ${method.toUpperCase()} ${path}`);
    wrong += found === "200" ? 0 : 1;
    await block.locator(".opblock-summary-control").click();
  }
} finally {
  await browser.close();
}
console.log(`${reading.length} operations, ${wrong} not answered by 200`);
process.exit(wrong || !reading.length ? 1 : 0);
