// Tries the server's page in a real browser; the shell script beside it starts it.
// Prints a line for each thing that holds, with the figures that were seen, and ends at the first that does not.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { axe, different, launch, open, serve, until } from "./page_parts.mjs";

const argument = (name) => {
  const at = process.argv.indexOf(name);
  return at < 0 ? null : process.argv[at + 1];
};
const screenshots = argument("--screenshots");
const many = Number(argument("--points") ?? 0);
if (screenshots) mkdirSync(screenshots, { recursive: true });

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
const clean = (wrong, what) => assert.deepEqual(wrong, [], what);

const server = await serve({ flags: ["--device", "prefer-gpu", "--simulated-gpus", "2"] });
const browser = await launch();
let load = null;
try {
  await seed(server);
  await everyView();
  await figures();
  await keyboardAlone();
  await textsThatLookLikeScripts();
  await pictureOfACollection();
  await aKilledWorker();
  await phone();
  if (many > 0) await manyPoints();
} finally {
  load?.stop();
  await end(server);
}
await keys();
await browser.close();
console.log(`${held} passed, 0 failed, 0 skipped`);

/** Closes what is open before the server, which waits for its clients. */
async function end(server) {
  for (const context of browser.contexts()) await context.close();
  await server.stop();
}

/** Documents of three kinds, one of which looks like a script. */
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
  points.push({ id: 1000, vector: { text: EVIL, model: "bert" }, payload: { text: EVIL, kind: EVIL, day: 1 } });
  await server.ask("PUT", "/collections/documents/points", { points });
}

/** Requests in the background, some at once. */
function work(server) {
  let isOn = true;
  let failed = 0;
  let answered = 0;
  const one = async (lane) => {
    while (isOn) {
      const texts = Array.from({ length: 1 + ((lane * 5 + answered) % 24) }, (_, at) => `text ${lane} ${answered} ${at} about a river and a boat`);
      await server.ask("POST", "/embed", { inputs: texts }).then(
        () => (answered += 1),
        () => (failed += isOn ? 1 : 0),
      );
    }
  };
  const lanes = Array.from({ length: 6 }, (_, lane) => one(lane));
  return { stop: () => ((isOn = false), Promise.all(lanes)), failed: () => failed, answered: () => answered };
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
      if (view === "collections") {
        await page.waitForSelector('[data-map="done"]');
        await page.selectOption(".map-foot select", "kind");
        await page.waitForSelector(".map-legend li");
        await page.click("text=Select what is in view");
        await page.waitForSelector(".selected .points li");
      }
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
  await page.waitForTimeout(50);
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

async function aKilledWorker() {
  const state = () => server.ask("GET", "/ui/state");
  load = work(server);
  const { page, close } = await open(browser, server.url);
  let seen = 0;
  let fate = null;
  // A worker that ends between two batches had no request: then the next is killed.
  for (let kills = 0; kills < 12 && !(fate?.requests > 0); kills += 1) {
    const before = (await state()).incidents.length;
    const device = await until("a worker computes", async () => (await state()).engine.devices.find((device) => device.worker_pid && device.batches > 0));
    process.kill(device.worker_pid, "SIGKILL");
    const killed = Date.now();
    await page.waitForFunction((before) => document.querySelectorAll("[data-incident]").length > before, Math.min(before, 11));
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
  await load.stop();
  assert.equal(load.failed(), 0, "requests that were lost");
  assert.equal(fate.answered, fate.requests, JSON.stringify(fate));
  clean(await close(), "a killed worker");
  holds(`a worker killed by -9 was shown after ${seen} ms: ${fate.requests} requests, ${fate.answered} answered all the same, none lost of ${load.answered()}`);
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
  const numbers = 384;
  await server.ask("PUT", "/collections/many", { vectors: { size: numbers, distance: "Cosine" } });
  let state = 1;
  const chance = () => (state = (state * 16807) % 2147483647) / 2147483647 - 0.5;
  const centres = Array.from({ length: 24 }, () => Array.from({ length: numbers }, chance));
  for (let from = 0; from < many; from += 1000) {
    const points = Array.from({ length: Math.min(1000, many - from) }, (_, at) => {
      const kind = (from + at) % centres.length;
      return { id: from + at + 1, vector: centres[kind].map((value) => Number((value + chance() * 0.8).toFixed(3))), payload: { kind: `kind ${kind}` } };
    });
    await server.ask("PUT", "/collections/many/points?wait=false", { points });
  }
  const { page, go, close } = await open(browser, server.url);
  await go("collections");
  await page.click("text=many");
  const began = Date.now();
  await page.waitForSelector('[data-map="refining"], [data-map="begun"], [data-map="done"]');
  const first = Date.now() - began;
  await page.waitForSelector('[data-map="done"]', { timeout: 120_000 });
  const whole = Date.now() - began;
  await page.selectOption(".map-foot select", "kind");
  await page.waitForSelector(".map-legend li");
  const box = await (await page.$(".map canvas")).boundingBox();
  const counting = page.evaluate(() => new Promise((counted) => {
    const times = [];
    const frame = (time) => (times.push(time), times.length < 90 ? requestAnimationFrame(frame) : counted(((times.length - 1) * 1000) / (times.at(-1) - times[0])));
    requestAnimationFrame(frame);
  }));
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  await page.mouse.down();
  for (let at = 0; at < 200; at += 1) await page.mouse.move(box.x + box.width / 2 + 100 * Math.sin(at / 9), box.y + box.height / 2 + 60 * Math.cos(at / 7));
  await page.mouse.up();
  const frames = await counting;
  await picture(page, "map");
  clean(await close(), "many points");
  holds(`${many} points: drawn after ${first} ms, by neighbourhood after ${whole} ms, ${frames.toFixed(0)} frames a second while they move`);
}

async function keys() {
  const guarded = await serve({ flags: ["--device", "cpu"], env: { MAGRAY_API_KEYS: "reader-key-000", MAGRAY_ADMIN_KEYS: "admin-key-0000" } });
  try {
    const none = await open(browser, guarded.url);
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
    const admin = await open(browser, guarded.url, { key: "admin-key-0000" });
    await admin.go("models");
    await admin.page.waitForSelector(".model-actions");
    clean(await axe(admin.page), "axe with an administrator's key");
    clean(await admin.close(), "an administrator's key");
    // A page of another origin, and one that points a name of its own at the server.
    for (const headers of [{ origin: "https://evil.example" }, { "sec-fetch-site": "cross-site" }, { "sec-fetch-site": "same-site" }]) {
      for (const path of ["/ui/state", "/ui/events", "/ui/features"]) {
        const response = await fetch(guarded.url + path, { headers: { authorization: "Bearer admin-key-0000", ...headers } });
        assert.equal(response.status, 403, `${path} ${JSON.stringify(headers)}`);
      }
    }
    holds("without a key nothing is shown, a user is offered no change and refused every one, other origins are refused");
  } finally {
    await end(guarded);
  }
}
