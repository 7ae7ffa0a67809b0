// Measures the page: what its budgets are about, a line for each figure with its bar.
// Judges nothing that the tests judge, and is no part of the checks: its figures are of one machine.

import { readFileSync, readdirSync } from "node:fs";
import { get } from "node:http";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { addManyPoints, demonstrate, framesWhileMoved, launch, open, serve, until, work } from "./page_parts.mjs";

const PARTS = { size, paint, viewers, killed, map, demo };
const asked = process.argv.slice(2);
const rest = (ms) => new Promise((over) => setTimeout(over, ms));
const sorted = (values) => [...values].sort((a, b) => a - b);
const median = (values) => sorted(values)[Math.floor(values.length / 2)];
const spread = (values, digits = 0) => `${median(values).toFixed(digits)} (${Math.min(...values).toFixed(digits)}-${Math.max(...values).toFixed(digits)})`;
const tell = (what, figure, bar, isMet) => console.log(`${isMet ? "hit " : "MISS"}  ${what}: ${figure}; bar ${bar}`);
const SIMULATED = ["--device", "prefer-gpu", "--simulated-gpus", "2"];

for (const name of asked.length > 0 ? asked : Object.keys(PARTS)) await PARTS[name]();

async function size() {
  const folder = process.env.MAGRAY_PAGE;
  const files = readdirSync(folder).map((name) => gzipSync(readFileSync(join(folder, name))).length);
  const bytes = files.reduce((sum, size) => sum + size, 0);
  tell("all files, packed", `${(bytes / 1000).toFixed(1)} kB`, "300 kB", bytes <= 300_000);
}

/** Each time in a context of its own, which has nothing in its cache. */
async function paint() {
  const server = await serve({ flags: SIMULATED });
  const browser = await launch();
  const [painted, live] = [[], []];
  for (let round = 0; round < 12; round += 1) {
    const { page, close } = await open(browser, server.url);
    const first = () => page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
    painted.push(await until("a first paint", first));
    await page.waitForSelector("[data-metric]");
    live.push(await page.evaluate(() => performance.now()));
    await close();
    await rest(500);
  }
  // The first starts a process of the browser.
  tell("first paint, ms", spread(painted.slice(1)), "300 ms", Math.max(...painted.slice(1)) <= 300);
  console.log(`      first paint of the browser's first page, ms: ${painted[0].toFixed(0)}; figures shown, ms: ${spread(live.slice(1))}`);
  await browser.close();
  await server.stop();
}

/** Seconds for which a process and its workers have used a core. */
function used(pid) {
  const fields = (id) => readFileSync(`/proc/${id}/stat`, "utf8").replace(/^.*\) /, "").split(" ");
  const all = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  const parents = new Map();
  for (const id of all) {
    try {
      parents.set(id, fields(id)[1]);
    } catch {
      // It has ended meanwhile.
    }
  }
  const family = [String(pid)];
  for (const id of family) for (const [child, parent] of parents) if (parent === id) family.push(child);
  const ticks = family.reduce((sum, id) => sum + Number(fields(id)[11]) + Number(fields(id)[12]), 0);
  return ticks / 100;
}

function look(url) {
  let bytes = 0;
  const asking = get(`${url}/ui/events`, { headers: { accept: "text/event-stream" }, agent: false }, (response) => response.on("data", (data) => (bytes += data.length)));
  asking.on("error", () => undefined);
  return { stop: () => asking.destroy(), bytes: () => bytes };
}

async function viewers() {
  const server = await serve({ flags: SIMULATED });
  const some = work(server);
  await rest(3000);
  await some.stop();
  const share = async (count, ms) => {
    const all = Array.from({ length: count }, () => look(server.url));
    await rest(1000);
    const [began, before] = [Date.now(), used(server.pid)];
    await rest(ms);
    const part = ((used(server.pid) - before) * 1000) / (Date.now() - began);
    const bytes = all.reduce((sum, viewer) => sum + viewer.bytes(), 0);
    all.forEach((viewer) => viewer.stop());
    return { part: part * 100, bytes };
  };
  const costs = [];
  let bytes = 0;
  for (let round = 0; round < 5; round += 1) {
    const without = await share(0, 10_000);
    const seen = await share(10, 10_000);
    bytes = seen.bytes / 10 / 11;
    costs.push(seen.part - without.part);
  }
  tell("10 viewers, % of a core", spread(costs, 2), "1 %", median(costs) <= 1);
  console.log(`      each takes ${(bytes / 1000).toFixed(1)} kB/s`);
  const ratios = [];
  for (let round = 0; round < 7; round += 1) {
    const rates = {};
    for (const count of round % 2 ? [10, 0] : [0, 10]) {
      const all = Array.from({ length: count }, () => look(server.url));
      const load = work(server, () => 8);
      await rest(1000);
      const [began, before] = [Date.now(), load.answered()];
      await rest(8000);
      rates[count] = ((load.answered() - before) * 1000) / (Date.now() - began);
      await load.stop();
      all.forEach((viewer) => viewer.stop());
    }
    ratios.push(rates[10] / rates[0]);
    console.log(`      round ${round + 1}: ${rates[0].toFixed(0)} requests/s without, ${rates[10].toFixed(0)} with 10 viewers`);
  }
  tell("throughput with 10 viewers", spread(ratios, 3), "0.99", median(ratios) >= 0.99);
  await server.stop();
}

async function killed() {
  const server = await serve({ flags: SIMULATED });
  const browser = await launch();
  const load = work(server);
  const state = () => server.ask("GET", "/ui/state");
  const { page, close } = await open(browser, server.url);
  await page.waitForSelector("[data-metric]");
  const shown = [];
  const fates = { requests: 0, answered: 0, refused: 0, cancelled: 0 };
  for (let kill = 0; kill < 10; kill += 1) {
    const before = (await state()).incidents.length;
    const device = await until("a worker computes", async () => (await state()).engine.devices.find((device) => device.worker_pid && device.batches > 0 && device.state === "in_rotation"));
    const seen = page.evaluate(
      (before) =>
        new Promise((seen) => {
          const look = () => (document.querySelectorAll("[data-incident]").length > before ? seen(Date.now()) : requestAnimationFrame(look));
          look();
        }),
      before,
    );
    const at = Date.now();
    process.kill(device.worker_pid, "SIGKILL");
    shown.push((await seen) - at);
    await until("it is back and its requests are answered", async () => {
      const [incident] = (await state()).incidents;
      return incident.back_after_s !== null && incident.answered + incident.refused + incident.cancelled === incident.requests;
    });
    await rest(1500 + 130 * kill);
  }
  for (const incident of (await state()).incidents) for (const name of Object.keys(fates)) fates[name] += incident[name];
  const text = await page.$eval("[data-incident] .grow", (line) => line.textContent.trim());
  await load.stop();
  tell("a worker killed by -9 is shown after, ms", spread(shown), "1000 ms", Math.max(...shown) <= 1000);
  console.log(`      ${JSON.stringify(fates)}, failed ${load.failed()} of ${load.answered()}; the page says: ${text}`);
  await close();
  await browser.close();
  await server.stop();
}

async function map() {
  const points = 100_000;
  const server = await serve({ flags: ["--device", "cpu"] });
  await addManyPoints(server, points);
  const browser = await launch();
  const [firsts, wholes, frames] = [[], [], []];
  for (let round = 0; round < 3; round += 1) {
    const { page, go, close } = await open(browser, server.url);
    await go("collections");
    const began = Date.now();
    await page.waitForSelector('[data-map="refining"], [data-map="begun"], [data-map="done"]');
    firsts.push((Date.now() - began) / 1000);
    await page.waitForSelector('[data-map="done"]', { timeout: 120_000 });
    wholes.push((Date.now() - began) / 1000);
    frames.push(await framesWhileMoved(page));
    await close();
    await rest(1000);
  }
  tell(`${points} points by principal components, s`, spread(firsts, 1), "10 s", Math.max(...firsts) <= 10);
  tell(`${points} points by neighbourhood, s`, spread(wholes, 1), "10 s", Math.max(...wholes) <= 10);
  tell("frames a second while they move", spread(frames), "30", Math.min(...frames) >= 30);
  await browser.close();
  await server.stop();
}

/** In an empty home, as a new user has it. */
async function demo() {
  const browser = await launch();
  const [started, looked] = [[], []];
  for (let round = 0; round < 5; round += 1) {
    const began = Date.now();
    const server = await demonstrate();
    started.push((Date.now() - began) / 1000);
    const { page, close } = await open(browser, server.url);
    await page.waitForSelector("[data-metric]");
    looked.push((Date.now() - began) / 1000);
    await close();
    await server.summary();
  }
  tell("magray demo to the first figures on the page, s", spread(looked, 2), "5 s", Math.max(...looked) <= 5);
  console.log(`      until it listens, s: ${spread(started, 2)}`);
  await browser.close();
}
