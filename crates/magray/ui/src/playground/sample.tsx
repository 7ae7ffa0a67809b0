// A request as people would send it themselves: by curl and by Python.
// Never contains the key: it names the variable that holds it.

import { useState } from "preact/hooks";
import { Code, Tabs } from "../parts";
import { address, savedKey } from "../state/server";

const KINDS = [
  ["curl", "curl"],
  ["python", "Python"],
] as const;

export function Sample({ route, body, streams }: { route: string; body: unknown; streams?: boolean }) {
  const [kind, setKind] = useState<"curl" | "python">("curl");
  const code = kind === "curl" ? curl(route, body, streams) : python(route, body, streams);
  return (
    <div class="sample">
      <div class="row between">
        <h3>The same from elsewhere</h3>
        <Tabs label="Language" tabs={KINDS} chosen={kind} choose={setKind} />
      </div>
      <Code code={code} label={`The request in ${kind}`} />
    </div>
  );
}

function curl(route: string, body: unknown, streams?: boolean): string {
  const key = savedKey() ? ` \\\n  -H "Authorization: Bearer $MAGRAY_KEY"` : "";
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl -s${streams ? "N" : ""} \\\n  ${address(route)} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${json}'`;
}

function python(route: string, body: unknown, streams?: boolean): string {
  const key = savedKey();
  const imports = key ? "import os\nimport requests" : "import requests";
  const headers = key ? `\n    headers={"Authorization": "Bearer " + os.environ["MAGRAY_KEY"]},` : "";
  const call = `requests.post(\n    "${address(route)}",${headers}\n    json=${literal(body, 1)},${streams ? "\n    stream=True," : ""}\n)`;
  if (!streams) return `${imports}\n\nanswer = ${call}\nprint(answer.json())`;
  return `${imports}\n\nanswer = ${call}\nfor line in answer.iter_lines(decode_unicode=True):\n    print(line)`;
}

/** A JSON value as Python writes it. */
export function literal(value: unknown, depth = 0): string {
  const inner = "    ".repeat(depth + 1);
  const outer = "    ".repeat(depth);
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return value.length === 0 ? "[]" : `[\n${value.map((item) => inner + literal(item, depth + 1)).join(",\n")},\n${outer}]`;
  if (typeof value === "object") {
    const fields = Object.entries(value as Record<string, unknown>).filter(([, field]) => field !== undefined);
    return fields.length === 0 ? "{}" : `{\n${fields.map(([name, field]) => `${inner}${JSON.stringify(name)}: ${literal(field, depth + 1)}`).join(",\n")},\n${outer}}`;
  }
  return JSON.stringify(value);
}

/** Where and how fast it was computed, by the headers of an answer. */
export function computedBy(response: Response): string {
  const device = response.headers.get("x-magray-device");
  const fallback = response.headers.get("x-magray-fallback");
  const timing = response.headers.get("server-timing") ?? "";
  const spent = [...timing.matchAll(/(\w+);dur=([\d.]+)/g)].map(([, name, ms]) => `${name} ${Number(ms).toFixed(1)} ms`);
  return [device && `on ${device}`, ...spent, fallback && `in place of a GPU: ${fallback.replaceAll("_", " ")}`].filter(Boolean).join(" · ");
}
