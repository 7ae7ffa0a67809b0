// What the tests of the page are made of: a server, a browser page that notes everything that is wrong, axe, figures of /metrics.
// Checks nothing itself.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const require = createRequire(import.meta.url);
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const FIXTURES = process.env.MAGRAY_FIXTURES;
const CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** Starts a server in a folder of its own. */
export async function serve({ flags = [], env = {} } = {}) {
  const home = mkdtempSync(join(tmpdir(), "magray-page-"));
  const models = ["--model", join(FIXTURES, "bert"), "--model", join(FIXTURES, "xlm-roberta-classify")];
  const child = spawn(process.env.MAGRAY_BIN, ["serve", "--port", "0", "--threads", "1", ...models, "--collections", join(home, "collections"), ...flags], {
    cwd: home,
    env: { PATH: process.env.PATH, HOME: home, HF_ENDPOINT: "http://127.0.0.1:1", MAGRAY_TEXT_CACHE: "0", ...env },
    stdio: ["ignore", "ignore", "pipe"],
  });
  let said = "";
  const url = await new Promise((found, failed) => {
    child.stderr.on("data", (data) => {
      said += data;
      const address = said.match(/listening on (http:\/\/\S+)/);
      if (address) found(address[1]);
    });
    child.on("exit", () => failed(new Error(`the server ended: ${said}`)));
  });
  const ask = async (method, path, body, headers = {}) => {
    const response = await fetch(url + path, { method, headers: { "content-type": "application/json", ...headers }, body: body === undefined ? undefined : JSON.stringify(body) });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response.headers.get("content-type")?.includes("json") ? response.json() : response.text();
  };
  const stop = () =>
    new Promise((ended) => {
      child.removeAllListeners("exit");
      child.on("exit", () => {
        rmSync(home, { recursive: true, force: true });
        ended();
      });
      child.kill("SIGTERM");
    });
  return { url, ask, stop, said: () => said };
}

export function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM, headless: true, args: CHROMIUM_FLAGS });
}

/** Opens a page that notes what must not be: errors, requests to others, dialogs, breaches of the policy. */
export async function open(browser, url, { width = 1360, height = 900, dark = false, key = "", mock } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? "dark" : "light", reducedMotion: "reduce" });
  context.setDefaultTimeout(90_000);
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => message.type() === "error" && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  page.on("request", (request) => {
    if (!request.url().startsWith(url)) wrong.push(`foreign request: ${request.url()}`);
  });
  await page.addInitScript(() => {
    globalThis.breaches = [];
    document.addEventListener("securitypolicyviolation", (event) => globalThis.breaches.push(`${event.violatedDirective} ${event.blockedURI}`));
  });
  if (key) await page.addInitScript((key) => sessionStorage.setItem("magray-key", key), key);
  if (mock) await mock(page);
  await page.goto(`${url}/ui/`);
  const go = async (view) => {
    await page.evaluate((view) => (location.hash = `#/${view}`), view);
    await page.waitForFunction((view) => document.title.toLowerCase().startsWith(view), view);
  };
  const close = async () => {
    const breaches = await page.evaluate(() => globalThis.breaches);
    await context.close();
    return [...wrong, ...breaches.map((breach) => `policy: ${breach}`)];
  };
  return { page, go, close };
}

/** What axe finds that is serious or critical. */
export async function axe(page) {
  await page.evaluate(AXE);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return found.violations
    .filter((violation) => ["serious", "critical"].includes(violation.impact))
    .map((violation) => `${violation.id}: ${violation.nodes.map((node) => `${node.target} (${node.any[0]?.message ?? node.none[0]?.message ?? ""})`).slice(0, 4).join("; ")}`);
}

/** The figures that the page shows and that /metrics has too: those that differ. */
export async function different(page, server) {
  const shown = await page.$$eval("[data-metric]", (all) => all.map((one) => ({ ...one.dataset })));
  const metrics = await server.ask("GET", "/metrics");
  const wrong = [];
  for (const { metric, device, model, value } of shown) {
    const label = device ? `{device="${device}"}` : model ? `{model="${model}"}` : "";
    const line = metrics.split("\n").find((line) => line.startsWith(`${metric}${label} `));
    if (line === undefined || Number(line.split(" ").at(-1)) !== Number(value)) wrong.push(`${metric}${label}: the page has ${value}, /metrics ${line}`);
  }
  return { compared: shown.length, wrong };
}

/** Asks again until it is so. */
export async function until(what, isSo, withinMs = 60_000) {
  const end = Date.now() + withinMs;
  for (;;) {
    const found = await isSo();
    if (found) return found;
    if (Date.now() > end) throw new Error(`${what} did not come about`);
    await new Promise((again) => setTimeout(again, 20));
  }
}
