// What the tests of the page are made of: a server, a browser page that notes everything that is wrong, axe, figures of /metrics.
// Checks nothing itself.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const require = createRequire(import.meta.url);
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const FIXTURES = process.env.MAGRAY_FIXTURES;
/** A name of another host, which leads here. */
export const ELSEWHERE = "elsewhere.example";
const CHROMIUM_FLAGS = [`--host-resolver-rules=MAP ${ELSEWHERE} 127.0.0.1`, "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** Starts a server in a folder of its own. */
export async function serve({ flags = [], env = {} } = {}) {
  const home = mkdtempSync(join(tmpdir(), "magray-page-"));
  const models = ["--model", join(FIXTURES, "bert"), "--model", join(FIXTURES, "xlm-roberta-classify")];
  const child = spawn(process.env.MAGRAY_BIN, ["serve", "--port", "0", "--threads", "1", ...models, "--collections", join(home, "collections"), ...flags], {
    cwd: home,
    env: { PATH: process.env.PATH, HOME: home, HF_ENDPOINT: "http://127.0.0.1:1", MAGRAY_TEXT_CACHE: "0", ...env },
    stdio: ["ignore", "ignore", "pipe"],
  });
  // Also where a test fails, or the browser's driver throws.
  process.on("exit", () => {
    child.kill("SIGKILL");
    rmSync(home, { recursive: true, force: true });
  });
  let said = "";
  const url = await new Promise((found, failed) => {
    child.stderr.on("data", (data) => {
      said += data;
      const address = said.match(/listening on (http:\/\/\S+)\s/);
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
  return { url, ask, stop, pid: child.pid, said: () => said, ended: () => child.exitCode !== null || child.signalCode !== null };
}

/** Starts a demonstration as a new user has it, in an empty home. */
export async function demonstrate(flags = []) {
  const home = mkdtempSync(join(tmpdir(), "magray-demo-"));
  const child = spawn(process.env.MAGRAY_BIN, ["demo", "--json", "--port", "0", ...flags], { cwd: home, env: { PATH: process.env.PATH, HOME: home }, stdio: ["ignore", "pipe", "ignore"] });
  const ended = new Promise((over) => child.on("exit", over));
  process.on("exit", () => {
    child.kill("SIGKILL");
    rmSync(home, { recursive: true, force: true });
  });
  const told = [];
  const event = (name) => until(`'${name}'`, () => told.find((line) => line.event === name));
  createInterface({ input: child.stdout }).on("line", (line) => told.push(JSON.parse(line)));
  const url = new URL((await event("started")).page).origin;
  /** Ends it, and answers what came of its requests. */
  const summary = async () => {
    child.kill("SIGINT");
    const found = await event("summary");
    await ended;
    return found;
  };
  return { url, summary, said: () => told.slice(-20).map((line) => JSON.stringify(line)).join("\n"), ended: () => child.exitCode !== null || child.signalCode !== null };
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
  if (process.env.MAGRAY_UI) await page.route(/\/ui\/\w+\.(js|css)$/, otherFile);
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

/** A file of the folder that MAGRAY_UI names, with the headers of the binary's own. */
async function otherFile(route) {
  const name = new URL(route.request().url()).pathname.split("/").at(-1);
  const headers = { ...(await route.fetch()).headers() };
  for (const packed of ["content-encoding", "content-length", "etag"]) delete headers[packed];
  await route.fulfill({ headers, body: readFileSync(join(process.env.MAGRAY_UI, name)) });
}

/** What axe finds that is serious or critical. */
export async function axe(page) {
  await page.evaluate(AXE);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return found.violations
    .filter((violation) => ["serious", "critical"].includes(violation.impact))
    .map((violation) => `${violation.id}: ${violation.nodes.map((node) => `${node.target} (${node.any[0]?.message ?? node.none[0]?.message ?? ""})`).slice(0, 4).join("; ")}`);
}

/** The figures that the page shows and that /metrics has too, by their name there. */
export async function shown(page) {
  const all = await page.$$eval("[data-metric]", (all) => all.map((one) => ({ ...one.dataset })));
  return all.map(({ metric, device, model, value }) => ({ metric, name: metric + (device ? `{device="${device}"}` : model ? `{model="${model}"}` : ""), value: Number(value) }));
}

/** All of /metrics by name. */
export async function metrics(server) {
  const lines = (await server.ask("GET", "/metrics")).split("\n").filter((line) => line && !line.startsWith("#"));
  return new Map(lines.map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))]));
}

/** Those that differ. */
export async function different(page, server) {
  const [figures, known] = [await shown(page), await metrics(server)];
  const wrong = figures.filter(({ name, value }) => known.get(name) !== value);
  return { compared: figures.length, wrong: wrong.map(({ name, value }) => `${name}: the page has ${value}, /metrics ${known.get(name)}`) };
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

/** Requests in the background, some at once. */
export function work(server, textsOf = (lane, answered) => 1 + ((lane * 5 + answered) % 24)) {
  let isOn = true;
  let failed = 0;
  let answered = 0;
  const one = async (lane) => {
    while (isOn) {
      const texts = Array.from({ length: textsOf(lane, answered) }, (_, at) => `text ${lane} ${answered} ${at} about a river and a boat`);
      await server.ask("POST", "/embed", { inputs: texts }).then(
        () => (answered += 1),
        () => (failed += isOn ? 1 : 0),
      );
    }
  };
  const lanes = Array.from({ length: 6 }, (_, lane) => one(lane));
  return { stop: () => ((isOn = false), Promise.all(lanes)), failed: () => failed, answered: () => answered };
}

/** A collection of this number of points in some clouds, coloured by a field. */
export async function addManyPoints(server, count) {
  const numbers = 384;
  await server.ask("PUT", "/collections/many", { vectors: { size: numbers, distance: "Cosine" } });
  let state = 1;
  const chance = () => (state = (state * 16807) % 2147483647) / 2147483647 - 0.5;
  const centres = Array.from({ length: 24 }, () => Array.from({ length: numbers }, chance));
  for (let from = 0; from < count; from += 1000) {
    const points = Array.from({ length: Math.min(1000, count - from) }, (_, at) => {
      const kind = (from + at) % centres.length;
      return { id: from + at + 1, vector: centres[kind].map((value) => Number((value + chance() * 0.8).toFixed(3))), payload: { kind: `kind ${kind}` } };
    });
    await server.ask("PUT", "/collections/many/points?wait=false", { points });
  }
}

/** Frames a second while the map is moved by the mouse, coloured. */
export async function framesWhileMoved(page) {
  await page.selectOption(".map-foot select", "kind");
  await page.waitForSelector(".map-legend li");
  const box = await (await page.$(".map canvas")).boundingBox();
  await page.evaluate(() => {
    const times = [];
    const frame = (time) => (times.push(time), requestAnimationFrame(frame));
    requestAnimationFrame(frame);
    globalThis.framesASecond = () => ((times.length - 1) * 1000) / (times.at(-1) - times[0]);
  });
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  await page.mouse.down();
  for (let at = 0; at < 300; at += 1) await page.mouse.move(box.x + box.width / 2 + 100 * Math.sin(at / 9), box.y + box.height / 2 + 60 * Math.cos(at / 7));
  const frames = await page.evaluate(() => globalThis.framesASecond());
  await page.mouse.up();
  return frames;
}
