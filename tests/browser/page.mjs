// Tries the server's page in a real browser; the shell script beside it starts it.
// Prints a line for each thing that holds, with the figures that were seen, and ends at the first that does not.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { ELSEWHERE, addManyPoints, axe, demonstrate, different, framesWhileMoved, launch, metrics, open, serve, shown, until, work } from "./page_parts.mjs";

const argument = (name) => {
  const at = process.argv.indexOf(name);
  return at < 0 ? null : process.argv[at + 1];
};
const screenshots = argument("--screenshots");
/** Where the pictures of the documents go. */
const images = argument("--images");
const many = Number(argument("--points") ?? 0);
for (const folder of [screenshots, images]) if (folder) mkdirSync(folder, { recursive: true });

const VIEWS = ["now", "models", "playground", "collections"];
const EVIL = `<img src=x onerror="globalThis.ran=1"><script>globalThis.ran=1</script><b>bold</b>`;
let held = 0;
const holds = (what) => {
  held += 1;
  console.log(`ok ${held} ${what}`);
};
const picture = async (page, name) => {
  if (screenshots) await page.screenshot({ path: join(screenshots, `page-${name}.png`) });
};
const image = async (page, name) => {
  if (images) await page.screenshot({ path: join(images, `page-${name}.png`) });
};
const clean = (wrong, what) => assert.deepEqual(wrong, [], what);

const PARTS = { views: everyView, figures, keyboard: keyboardAlone, scripts: textsThatLookLikeScripts, lasso: pictureOfACollection, foreign: foreignPages, silent: aSilentServer, killed: aKilledWorker, phone, points: manyPoints };
const only = argument("--only");
const browser = await launch();
let server = null;
let load = null;
try {
  if (only === null || only in PARTS) {
    server = await serve({ flags: ["--device", "prefer-gpu", "--simulated-gpus", "2"] });
    await seed(server);
    if (images) await imageOfACollection();
    await addAScript(server);
    for (const [name, part] of Object.entries(PARTS)) if (name === (only ?? name)) await part();
    await load?.stop();
    await end(server);
  }
  if ((only ?? "keys") === "keys") await keys();
  if ((only ?? "demo") === "demo") await faultsOfADemonstration();
} catch (error) {
  await tellWhatIsThere(error);
  process.exit(1);
}
await browser.close();
// As Rust's tests say it, which the checks count.
console.log(`test result: ok. ${held} passed; 0 failed; 0 ignored`);

/** What went wrong, what the pages showed at that moment, and what the server said last. */
async function tellWhatIsThere(error) {
  console.error(error);
  for (const page of browser.contexts().flatMap((context) => context.pages())) {
    const text = await page.evaluate(() => `${document.visibilityState}: ${document.body.innerText.slice(0, 600)}`).catch((gone) => gone.message);
    console.error(`the page ${page.url()} was ${text}`);
  }
  console.error(`the server ${server?.ended() ? "has ended" : "runs"}: ${server?.said().slice(-2000)}`);
  console.log(`test result: FAILED. ${held} passed; 1 failed; 0 ignored`);
}

/** Closes what is open before the server, which waits for its clients. */
async function end(server) {
  for (const context of browser.contexts()) await context.close();
  await server.stop();
}

/** Documents of three kinds. */
async function seed(server) {
  const vector = (await server.ask("POST", "/embed", { inputs: "river" }))[0];
  await server.ask("PUT", "/collections/documents", { vectors: { size: vector.length, distance: "Cosine" }, text_field: "text" });
  const kinds = { boats: ["river", "boat", "sail", "harbour"], cats: ["cat", "kitten", "sofa", "nap"], markets: ["stock", "bank", "price", "trade"] };
  const points = [];
  for (const [kind, words] of Object.entries(kinds)) {
    for (let at = 0; at < 60; at += 1) {
      const text = `The ${words[at % 4]} and the ${words[(at * 7 + 1) % 4]} of day ${at} in ${kind}.`;
      points.push({ id: points.length + 1, vector: { text, model: "bert" }, payload: { text, kind, day: at } });
    }
  }
  await server.ask("PUT", "/collections/documents/points", { points });
}

/** A document that looks like a script. */
async function addAScript(server) {
  const point = { id: 1000, vector: { text: EVIL, model: "bert" }, payload: { text: EVIL, kind: EVIL, day: 1 } };
  await server.ask("PUT", "/collections/documents/points", { points: [point] });
}

async function imageOfACollection() {
  const { page, go, close } = await open(browser, server.url);
  await go("collections");
  await colourAndSelect(page);
  await image(page, "collections");
  await close();
}

async function colourAndSelect(page) {
  await page.waitForSelector('[data-map="done"]');
  await page.selectOption(".map-foot select", "kind");
  await page.waitForSelector(".map-legend li");
  await page.click("text=Select what is in view");
  await page.waitForSelector(".selected .points li");
}

async function everyView() {
  load = work(server);
  for (const dark of [false, true]) {
    const { page, go, close } = await open(browser, server.url, { dark });
    await page.waitForSelector("[data-metric]");
    if (!dark) {
      const paint = await until("a first paint", () => page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime));
      const sizes = await page.evaluate(() => performance.getEntriesByType("resource").map((entry) => entry.encodedBodySize));
      holds(`first paint after ${paint.toFixed(0)} ms, ${sizes.length} files`);
    }
    for (const view of VIEWS) {
      await go(view);
      await until(`${view} shows something`, () => page.$(".card h2"));
      if (view === "playground") await compare(page);
      if (view === "collections") await colourAndSelect(page);
      if (view === "now") await until("load is shown", async () => Number(await page.$eval('[data-metric="magray_device_texts_total"][data-device="cpu"]', () => 1)) && (await page.$("canvas.heat")));
      clean(await axe(page), `axe in ${view}, ${dark ? "dark" : "light"}`);
      await picture(page, `${view}-${dark ? "dark" : "light"}`);
    }
    const inline = await page.evaluate(() => document.querySelectorAll("script:not([src]), style, [style][onload], [onclick], [onerror]").length);
    assert.equal(inline, 0, "scripts or styles in the document");
    clean(await close(), `views in ${dark ? "dark" : "light"}`);
  }
  holds("every view, light and dark: no error, no foreign request, no inline script, nothing serious for axe");
  const { headers } = await fetch(`${server.url}/ui/`);
  const policy = headers.get("content-security-policy");
  assert.ok(policy.startsWith("default-src 'none'") && !policy.includes("unsafe") && policy.includes("frame-ancestors 'none'"), policy);
  holds("the policy allows the page's own files alone");
}

async function compare(page) {
  await page.getByRole("button", { name: "Compare", exact: true }).click();
  await page.waitForSelector(".matrix tbody tr");
}

async function figures() {
  await figuresOfTheSameSecond();
  await load.stop();
  assert.equal(load.failed(), 0, "requests of the load that failed");
  const { page, go, close } = await open(browser, server.url);
  let compared = 0;
  for (const view of ["now", "models"]) {
    await go(view);
    const same = await until(`the figures of ${view}`, async () => {
      const found = await different(page, server);
      return found.compared > 0 && found.wrong.length === 0 && found;
    }).catch(async (error) => {
      throw new Error(`${error.message}: ${JSON.stringify(await different(page, server))}`);
    });
    compared += same.compared;
  }
  clean(await close(), "figures");
  holds(`${compared} figures equal those of /metrics`);
}

/** While counts grow, what the page has lies between /metrics before and after it. */
async function figuresOfTheSameSecond() {
  load ??= work(server);
  const { page, close } = await open(browser, server.url);
  await page.waitForSelector("[data-metric]");
  const texts = () => page.$$eval('[data-metric="magray_device_texts_total"]', (all) => all.map((one) => one.dataset.value).join());
  const changed = async (from) => until("the figures move", async () => (await texts()) !== from);
  let grown = 0;
  for (let round = 0; round < 5; round += 1) {
    const before = await metrics(server);
    // What is shown next may have been on its way; what comes after it is newer.
    for (let event = 0; event < 2; event += 1) await changed(await texts());
    const figures = await shown(page);
    const after = await metrics(server);
    for (const { name, metric, value } of figures.filter(({ metric }) => metric.endsWith("_total"))) {
      assert.ok(before.get(name) <= value && value <= after.get(name), `${name}: ${value} is not from ${before.get(name)} to ${after.get(name)}`);
      grown += metric === "magray_device_texts_total" && before.get(name) < after.get(name) ? 1 : 0;
    }
  }
  assert.ok(grown > 0, "nothing was computed meanwhile");
  clean(await close(), "figures under load");
  holds(`counts that grow are those of /metrics of the same moment: ${grown} compared`);
}

async function keyboardAlone() {
  const { page, close } = await open(browser, server.url);
  await page.waitForSelector("[data-metric]");
  const press = async (key, times = 1) => {
    for (let at = 0; at < times; at += 1) await page.keyboard.press(key);
  };
  const focused = () => page.evaluate(() => document.activeElement?.getAttribute("aria-label") || document.activeElement?.textContent?.trim() || document.activeElement?.tagName);
  const tabTo = async (name) => {
    for (let at = 0; at < 80; at += 1) {
      await press("Tab");
      if ((await focused())?.startsWith(name)) return;
    }
    throw new Error(`the keyboard does not reach '${name}'`);
  };
  await tabTo("Playground");
  await press("Enter");
  await page.waitForFunction(() => document.title.startsWith("Playground"));
  await tabTo("Compare");
  await press("Enter");
  await page.waitForSelector(".matrix tbody tr");
  await page.keyboard.press("Shift+Tab");
  await page.evaluate(() => document.querySelector('[role="tab"]').focus());
  await press("ArrowRight");
  await page.waitForSelector("text=Query and documents");
  await page.evaluate(() => document.getElementById("content").focus());
  await page.evaluate(() => (location.hash = "#/models"));
  await page.waitForFunction(() => document.title.startsWith("Models"));
  await tabTo("Offload");
  await press("Enter");
  await page.waitForSelector(".moves tbody tr");
  await page.evaluate(() => (location.hash = "#/collections"));
  await page.waitForSelector('[data-map="done"]');
  await tabTo("Map of");
  await press("+", 3);
  await press("ArrowLeft", 2);
  await press("0");
  await page.evaluate(() => document.querySelector(".map .row .button").focus());
  await press("Enter");
  await page.waitForSelector(".selected .points li");
  await page.focus(".map canvas");
  await press("Escape");
  await page.waitForSelector("text=Nothing selected");
  clean(await close(), "keyboard");
  holds("the keyboard alone compares texts, moves a model and selects points");
}

async function textsThatLookLikeScripts() {
  const chunk = (delta) => `data: ${JSON.stringify({ choices: [{ index: 0, delta }] })}\n\n`;
  // The fixtures have no language model: its answer is put in the server's place.
  const mock = async (page) => {
    await page.route("**/ui/features", async (route) => {
      const response = await route.fetch();
      const features = await response.json();
      features.models.push({ name: "tiny", does: "generate", outputs: 0, max_tokens: 64 });
      await route.fulfill({ response, json: features });
    });
    const call = { index: 0, id: "call_1", function: { name: EVIL, arguments: `{"a":"${EVIL.replaceAll('"', "'")}"}` } };
    const body = chunk({ content: EVIL.slice(0, 30) }) + chunk({ content: EVIL.slice(30), reasoning_content: EVIL }) + chunk({ tool_calls: [call] }) + "data: [DONE]\n\n";
    await page.route("**/v1/chat/completions", (route) => route.fulfill({ status: 200, contentType: "text/event-stream", body }));
  };
  const { page, go, close } = await open(browser, server.url, { mock });
  await go("playground");
  await page.getByRole("tab", { name: "Chat" }).click();
  await page.getByRole("textbox", { name: "Message" }).fill(EVIL);
  await page.keyboard.press("Enter");
  await page.waitForFunction((evil) => [...document.querySelectorAll(".said.assistant .text")].some((said) => said.textContent.includes(evil)), EVIL);
  await page.click("summary");
  assert.equal(await page.$(".said img, .said script, .said b"), null, "an answer became HTML");
  await picture(page, "chat");
  await page.getByRole("tab", { name: "Search" }).click();
  await page.getByRole("searchbox").fill("onerror");
  await page.getByRole("button", { name: "Search", exact: true }).click();
  await page.waitForSelector(".points li");
  await go("collections");
  await page.getByRole("tab", { name: "Query" }).click();
  await page.getByRole("searchbox").fill("bold script onerror");
  await page.getByRole("button", { name: "Search", exact: true }).click();
  await page.waitForFunction((evil) => [...document.querySelectorAll(".points .text")].some((text) => text.textContent.includes(evil)), EVIL);
  assert.equal(await page.$(".points img, .points script, .points b:not(.score)"), null, "a document became HTML");
  // What someone manages to put in as HTML does not run either, and is not taken at all.
  const isTaken = await page.evaluate(() => {
    try {
      document.getElementById("page").insertAdjacentHTML("beforeend", "<img src=x onerror='globalThis.ran=1'>");
      return true;
    } catch {
      return false;
    }
  });
  assert.equal(isTaken, false, "the browser took HTML");
  assert.equal(await page.evaluate(() => globalThis.ran), undefined, "a script ran");
  const wrong = (await close()).filter((line) => !line.includes("trusted-types") && !line.includes("TrustedHTML"));
  clean(wrong, "texts that look like scripts");
  holds("scripts in documents, answers, thoughts and calls are text");
}

async function pictureOfACollection() {
  const { page, go, close } = await open(browser, server.url);
  await go("collections");
  await page.waitForSelector('[data-map="done"]');
  await page.getByRole("tab", { name: "Lasso" }).click();
  const box = await (await page.$(".map canvas")).boundingBox();
  const ring = [[0.02, 0.02], [0.98, 0.02], [0.98, 0.98], [0.02, 0.98], [0.02, 0.04]];
  for (const [at, [x, y]] of ring.entries()) {
    await page.mouse.move(box.x + x * box.width, box.y + y * box.height, { steps: 4 });
    if (at === 0) await page.mouse.down();
  }
  await page.mouse.up();
  await page.waitForSelector(".selected .points li");
  const selected = await page.$eval('[aria-label="Selected"] .end', (end) => end.textContent);
  assert.equal(selected, "181 points");
  clean(await close(), "lasso");
  holds("a lasso selects points and shows their texts");
}

/** A page of another host asks with what a browser sends along, and one whose name was pointed here opens the server's own. */
async function foreignPages() {
  const timeouts = async () => (await server.ask("GET", "/gpu/status")).models.map((model) => model.idle_timeout_s);
  const before = await timeouts();
  const foreign = createServer((_, response) => response.setHeader("content-type", "text/html").end("<!doctype html><title>elsewhere</title>"));
  await new Promise((listens) => foreign.listen(0, "127.0.0.1", listens));
  const context = await browser.newContext();
  const page = await context.newPage();
  const answers = [];
  page.on("response", (response) => response.url().startsWith(server.url) && answers.push(response.status()));
  await page.goto(`http://${ELSEWHERE}:${foreign.address().port}/`);
  const isRead = await page.evaluate(async (url) => {
    for (const path of ["/gpu/offload", "/gpu/release", "/gpu/timeout", "/admin/reload"]) {
      // As a form sends it: without asking first.
      await fetch(url + path, { method: "POST", mode: "no-cors", body: new URLSearchParams({ timeout: "7" }) }).catch(() => undefined);
    }
    return fetch(`${url}/ui/state`).then(() => true, () => false);
  }, server.url);
  assert.equal(isRead, false, "a page of another host read the state");
  assert.ok(answers.length > 0 && answers.every((status) => status === 403), `answers to a page of another host: ${answers}`);
  assert.deepEqual(await timeouts(), before);
  const rebound = await page.goto(`http://${ELSEWHERE}:${new URL(server.url).port}/ui/`);
  assert.equal(rebound.status(), 403, "a name that was pointed here");
  await context.close();
  await new Promise((ended) => foreign.close(ended));
  holds("a page of another host changes nothing and reads nothing, and a name that was pointed here is refused");
}

/** A request that nobody answers, and a connection that nobody closes. */
async function aSilentServer() {
  let asked = 0;
  const mock = async (page) => {
    await page.clock.install();
    await page.route("**/ui/features", (route) => ((asked += 1) > 1 ? route.continue() : undefined));
  };
  const { page, close } = await open(browser, server.url, { mock });
  await until("the server is asked", () => asked > 0);
  await page.clock.fastForward(30_000);
  await page.waitForSelector("[data-metric]");
  clean(await close(), "a silent server");
  holds("a server that is silent is asked again");
}

async function aKilledWorker() {
  const state = () => server.ask("GET", "/ui/state");
  load = work(server);
  const { page, close } = await open(browser, server.url, { height: 1400 });
  let seen = 0;
  let fate = null;
  // A worker that ends between two batches had no request: then the next is killed.
  for (let kills = 0; kills < 12 && !(fate?.requests > 0); kills += 1) {
    const before = (await state()).incidents.length;
    const device = await until("a worker computes", async () => (await state()).engine.devices.find((device) => device.worker_pid && device.batches > 0));
    process.kill(device.worker_pid, "SIGKILL");
    const killed = Date.now();
    const isShown = (before) => document.querySelectorAll("[data-incident]").length > before;
    // A worker that was being ended already, as one that a busy machine keeps silent, has had its incident.
    const shown = await page.waitForFunction(isShown, Math.min(before, 11), { timeout: 10_000 }).catch(() => null);
    if (shown === null) continue;
    seen = Date.now() - killed;
    fate = await until("the requests of the worker are answered", async () => {
      const { incidents } = await state();
      const incident = incidents.length > before && incidents.find((incident) => incident.device === device.name);
      return incident && incident.answered + incident.refused + incident.cancelled === incident.requests && incident;
    });
    await until("the worker is back", async () => (await state()).incidents[0].back_after_s !== null);
  }
  assert.ok(fate.requests > 0, "no worker was killed in the middle of a batch");
  await page.waitForFunction(() => document.querySelector("[data-incident]").textContent.includes("back after"));
  await picture(page, "incident");
  await image(page, "now");
  await load.stop();
  assert.equal(load.failed(), 0, "requests that were lost");
  assert.equal(fate.answered, fate.requests, JSON.stringify(fate));
  clean(await close(), "a killed worker");
  holds(`a worker killed by -9 was shown after ${seen} ms: ${fate.requests} requests, ${fate.answered} answered all the same, none lost of ${load.answered()}`);
}

/** A simulated GPU is killed by a button, and the page says what became of its requests. */
async function faultsOfADemonstration() {
  server = await demonstrate(["--rate", "60", "--faults", "none"]);
  for (const [dark, width] of [[false, 1360], [true, 390]]) {
    const { page, go, close } = await open(browser, server.url, { dark, width });
    await go("faults");
    const told = () => page.$$eval("[data-incident]", (all) => all.length);
    const before = await until("the view is there", () => page.$(".fault-list")).then(told);
    await page.getByRole("button", { name: "Kill its worker of sim:0" }).click();
    await until("an incident", async () => (await told()) > before);
    await page.waitForFunction(() => document.querySelector("[data-incident]").textContent.includes("back after"));
    clean(await axe(page), "axe in faults");
    await picture(page, `faults-${dark ? "phone" : "light"}`);
    clean(await close(), "faults");
  }
  const { lost, wrong, sent } = await server.summary();
  assert.deepEqual([lost, wrong], [0, 0]);
  holds(`a worker killed by a button: none lost or wrong of the ${sent} requests of a demonstration`);
}

async function phone() {
  const { page, go, close } = await open(browser, server.url, { width: 390, height: 844 });
  for (const view of VIEWS) {
    await go(view);
    await until(`${view} shows something`, () => page.$(".card h2"));
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${view} is ${wide} pixels too wide for a phone`);
    clean(await axe(page), `axe in ${view} on a phone`);
    await picture(page, `${view}-phone`);
  }
  clean(await close(), "phone");
  holds("every view fits a phone");
}

/** How long the picture of many points takes, and how smoothly it moves. */
async function manyPoints() {
  if (many === 0) return;
  await addManyPoints(server, many);
  const { page, go, close } = await open(browser, server.url);
  await go("collections");
  await page.click("text=many");
  const began = Date.now();
  await page.waitForSelector('[data-map="refining"], [data-map="begun"], [data-map="done"]');
  const first = Date.now() - began;
  await page.waitForSelector('[data-map="done"]', { timeout: 120_000 });
  const whole = Date.now() - began;
  const frames = await framesWhileMoved(page);
  await picture(page, "map");
  clean(await close(), "many points");
  holds(`${many} points: drawn after ${first} ms, by neighbourhood after ${whole} ms, ${frames.toFixed(0)} frames a second while they move`);
}

async function keys() {
  server = await serve({ flags: ["--device", "cpu"], env: { MAGRAY_API_KEYS: "reader-key-000", MAGRAY_ADMIN_KEYS: "admin-key-0000" } });
  const none = await open(browser, server.url);
  await none.page.waitForSelector("text=This server asks for a key");
  await none.page.getByRole("button", { name: "Enter a key" }).click();
  await none.page.getByLabel("Key of a user or administrator").fill("reader-key-000");
  await none.page.keyboard.press("Enter");
  await none.page.waitForSelector("[data-metric]");
  await none.go("models");
  await none.page.waitForSelector(".places");
  assert.equal(await none.page.$(".model-actions, .pull"), null, "a user is offered changes");
  for (const [path, body] of [["/gpu/offload", {}], ["/gpu/pin", { pinned: true }], ["/gpu/timeout", { timeout: 1 }], ["/api/pull", { model: "a/b" }]]) {
    const status = await none.page.evaluate(async ([path, body]) => {
      const headers = { authorization: `Bearer ${sessionStorage.getItem("magray-key")}`, "content-type": "application/json" };
      return (await fetch(`..${path}`, { method: "POST", headers, body: JSON.stringify(body) })).status;
    }, [path, body]);
    assert.equal(status, 403, path);
  }
  const denied = (line) => line.includes("403");
  clean((await none.close()).filter((line) => !denied(line)), "a user's key");
  const admin = await open(browser, server.url, { key: "admin-key-0000" });
  await admin.go("models");
  await admin.page.waitForSelector(".model-actions");
  clean(await axe(admin.page), "axe with an administrator's key");
  clean(await admin.close(), "an administrator's key");
  // A page of another origin, and one that points a name of its own at the server.
  for (const headers of [{ origin: "https://evil.example" }, { "sec-fetch-site": "cross-site" }, { "sec-fetch-site": "same-site" }]) {
    for (const path of ["/ui/state", "/ui/events", "/ui/features"]) {
      const response = await fetch(server.url + path, { headers: { authorization: "Bearer admin-key-0000", ...headers } });
      assert.equal(response.status, 403, `${path} ${JSON.stringify(headers)}`);
    }
  }
  holds("without a key nothing is shown, a user is offered no change and refused every one, other origins are refused");
  await end(server);
}
