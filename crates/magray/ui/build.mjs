// Builds the page: bundles src into dist, the same bytes from the same sources on every machine.
// Writes nothing beside dist, or the folder that is named.
import { build } from "esbuild";
import { copyFileSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "dist");
mkdirSync(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/app.tsx", worker: "src/projection/worker.ts", style: "src/style/index.css" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  charset: "utf8",
  legalComments: "none",
  jsx: "automatic",
  jsxImportSource: "preact",
  logLevel: "warning",
});
for (const file of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", file), join(out, file));
