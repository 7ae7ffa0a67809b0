// Asks the server: the key of the caller, requests, errors in plain words, streams of events.
// Asks no other host, and keeps a key only for this tab.

const KEY_NAME = "magray-key";

/** An answer that is no success, in the server's own words. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export function savedKey(): string {
  try {
    return sessionStorage.getItem(KEY_NAME) ?? "";
  } catch {
    return "";
  }
}

export function saveKey(key: string): void {
  try {
    if (key) sessionStorage.setItem(KEY_NAME, key);
    else sessionStorage.removeItem(KEY_NAME);
  } catch {
    // Without storage the key lives as long as the page.
  }
}

/** The server's own address of a route: the page lies one folder below it. */
export function address(route: string): string {
  return new URL(".." + route, document.baseURI).href;
}

export interface Asking {
  method?: "GET" | "POST" | "PUT" | "DELETE";
  body?: unknown;
  signal?: AbortSignal;
  accept?: string;
}

export async function ask(route: string, asking: Asking = {}): Promise<Response> {
  const headers: Record<string, string> = { accept: asking.accept ?? "application/json" };
  const key = savedKey();
  if (key) headers["authorization"] = `Bearer ${key}`;
  const init: RequestInit = { method: asking.method ?? "GET", headers, credentials: "omit", redirect: "error" };
  if (asking.signal) init.signal = asking.signal;
  if (asking.body !== undefined) {
    headers["content-type"] = "application/json";
    init.body = JSON.stringify(asking.body);
  }
  const response = await fetch(address(route), init);
  if (!response.ok) throw new Refused(response.status, await refusal(response));
  return response;
}

export async function askJson<T>(route: string, asking: Asking = {}): Promise<T> {
  return (await ask(route, asking)).json() as Promise<T>;
}

/** The message of a refusal, in whichever shape its API has. */
async function refusal(response: Response): Promise<string> {
  const text = await response.text();
  try {
    const body = JSON.parse(text) as Record<string, unknown>;
    const error = body["error"] ?? body["message"] ?? body["detail"] ?? (body["status"] as Record<string, unknown>)?.["error"];
    if (typeof error === "string") return error;
    const inner = (error as Record<string, unknown> | undefined)?.["message"];
    if (typeof inner === "string") return inner;
  } catch {
    // No JSON: shown as it is.
  }
  return text.slice(0, 400) || `the server answered with status ${response.status}`;
}

/** The data of a stream's events, as they come. */
export async function* events(response: Response): AsyncGenerator<string> {
  for await (const block of blocks(response, "\n\n")) {
    const data = block
      .split("\n")
      .filter((line) => line.startsWith("data:"))
      .map((line) => line.slice(5).trimStart());
    if (data.length > 0) yield data.join("\n");
  }
}

/** The lines of a stream, as they come. */
export function lines(response: Response): AsyncGenerator<string> {
  return blocks(response, "\n");
}

async function* blocks(response: Response, end: string): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      rest += value;
      for (let at = rest.indexOf(end); at >= 0; at = rest.indexOf(end)) {
        const block = rest.slice(0, at);
        rest = rest.slice(at + end.length);
        if (block.trim()) yield block;
      }
    }
    if (rest.trim()) yield rest;
  } finally {
    // A view that does not look any more ends its stream.
    await reader.cancel().catch(() => undefined);
  }
}
