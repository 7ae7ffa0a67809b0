// A collection as a picture: each point where its vector puts it, coloured by a field, with a lasso and the texts beside it.
// The two directions in which vectors differ most are there at once; a worker refines them to neighbourhoods.

import { useEffect, useState } from "preact/hooks";
import { Card, Empty, Field, Notice, useAction } from "../parts";
import { count, percent } from "../state/numbers";
import type { Step } from "../projection/worker";
import { type Collection, type Point, retrieve, scroll } from "./api";
import { Canvas } from "./canvas";
import { Points } from "./found";
import { type Drawn, type MapData, NO_VALUE, readMap, readValues, type Values } from "./map_data";
import { PALETTE } from "./palette";

const POINTS_MAX = 100_000;
const TEXTS_MAX = 60;

export function CollectionMap({ collection }: { collection: Collection }) {
  const [data, setData] = useState<MapData | null>(null);
  const [step, setStep] = useState<Step | null>(null);
  const [field, setField] = useState("");
  const [fields, setFields] = useState<string[]>([]);
  const [values, setValues] = useState<Values | null>(null);
  const [selected, setSelected] = useState<Uint8Array | null>(null);
  const [texts, setTexts] = useState<Point[] | null>(null);
  const loading = useAction();
  const reading = useAction();
  const drawn: Drawn = { collection: collection.name, vector: collection.vectors[0]?.name ?? "", limit: POINTS_MAX };

  useEffect(() => {
    const stop = new AbortController();
    let worker: Worker | null = null;
    void loading.run(async () => {
      const first = await scroll(collection.name, { limit: 50, with_payload: true });
      setFields(fieldsOf(first.points));
      const map = await readMap(drawn, stop.signal);
      setData(map);
      if (stop.signal.aborted || map.ids.length === 0) return;
      worker = refine(map, setStep);
    });
    return () => {
      stop.abort();
      worker?.terminate();
    };
  }, [collection.name]);

  useEffect(() => {
    setValues(null);
    if (!field) return;
    const stop = new AbortController();
    void reading.run(async () => setValues(await readValues(drawn, field, stop.signal)));
    return () => stop.abort();
  }, [field]);

  const select = (points: Uint8Array | null) => {
    setSelected(points);
    setTexts(null);
    if (!points || !data) return;
    const ids: (number | string)[] = [];
    for (let point = 0; point < points.length && ids.length < TEXTS_MAX; point += 1) if (points[point]) ids.push(data.ids[point]!);
    void reading.run(async () => setTexts(ids.length ? await retrieve(collection.name, ids) : []));
  };

  if (loading.problem) return <Notice tone="bad">{loading.problem}</Notice>;
  if (collection.vectors.length === 0) return <Empty title="Nothing to draw">The collection has no vector with one row of numbers a point.</Empty>;
  if (!data) return <Empty title="Looking at the vectors">The directions in which they differ most come first.</Empty>;
  if (data.ids.length === 0) return <Empty title="The collection is empty" />;
  const isMine = values?.of.length === data.ids.length;
  const colours = isMine ? Uint8Array.from(values.of, (value) => (value === NO_VALUE ? 255 : value % PALETTE.length)) : null;
  const chosen = selected?.reduce((sum, one) => sum + one, 0) ?? 0;
  return (
    <div class="columns wide-left">
      <Card title="Map" hint={`${count(data.ids.length)}${data.total > data.ids.length ? ` of ${count(data.total)}` : ""} points`} end={<Doing step={step} shares={data.shares} />}>
        <Canvas places={step?.places ?? flat(data)} colours={colours} selected={selected} select={select} />
        <div class="map-foot">
          <Field label="Colour by">
            <select value={field} onChange={(event) => setField(event.currentTarget.value)}>
              <option value="">nothing</option>
              {fields.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </Field>
          {isMine && (
            <ul class="map-legend">
              {values.names.map((name, at) => (
                <li key={name}>
                  <i class={`hue-${at % PALETTE.length}`} />
                  {name}
                </li>
              ))}
            </ul>
          )}
        </div>
      </Card>
      <Card title="Selected" end={selected ? `${count(chosen)} points` : undefined}>
        {reading.problem && <Notice tone="bad">{reading.problem}</Notice>}
        {texts?.length ? (
          <div class="selected" tabIndex={0} role="region" aria-label="Texts of the selected points">
            <Points points={texts} textField={collection.textField} />
            {chosen > texts.length && <p class="muted small">The first {texts.length} are shown.</p>}
          </div>
        ) : (
          <Empty title={selected && texts ? "No point inside" : "Nothing selected"}>Choose Lasso and draw around points, or select all that is in view.</Empty>
        )}
      </Card>
    </div>
  );
}

function Doing({ step, shares }: { step: Step | null; shares: number[] }) {
  if (step?.doing === "done") return <span data-map="done">by neighbourhood</span>;
  if (!step) return <span data-map="begun">two directions: {percent((shares[0] ?? 0) + (shares[1] ?? 0))} of the differences</span>;
  return (
    <span data-map="refining" role="status">
      {step.doing === "neighbours" ? "finding neighbours" : "laying out"} · {percent(step.part)}
    </span>
  );
}

/** Names of fields whose values can be colours. */
function fieldsOf(points: Point[]): string[] {
  const names = new Set<string>();
  for (const point of points) {
    for (const [name, value] of Object.entries(point.payload)) {
      const isShort = typeof value === "string" ? value.length <= 60 : typeof value === "number" || typeof value === "boolean";
      if (isShort) names.add(JSON.stringify(name).slice(1, -1) === name && /^[\w-]+$/.test(name) ? name : `"${name}"`);
    }
  }
  return [...names].sort();
}

const flats = new WeakMap<MapData, Float32Array>();

/** The first two directions of each point. */
function flat(data: MapData): Float32Array {
  const known = flats.get(data);
  if (known) return known;
  const places = new Float32Array(data.ids.length * 2);
  for (let point = 0; point < data.ids.length; point += 1) {
    for (let axis = 0; axis < Math.min(2, data.axes); axis += 1) places[point * 2 + axis] = data.values[point * data.axes + axis]!;
  }
  flats.set(data, places);
  return places;
}

/** Browsers that check what becomes a script take the worker's address from this policy alone. */
const policy = (() => {
  type Policies = { createPolicy(name: string, rules: { createScriptURL(url: string): string }): { createScriptURL(url: string): unknown } };
  const known = (globalThis as unknown as { trustedTypes?: Policies }).trustedTypes;
  const own = new URL("worker.js", document.baseURI).href;
  const only = (url: string) => {
    if (url !== own) throw new TypeError("only the page's own worker is started");
    return url;
  };
  const made = known?.createPolicy("magray", { createScriptURL: only });
  return () => (made ? made.createScriptURL(own) : own) as string;
})();

function refine(data: MapData, told: (step: Step) => void): Worker {
  const worker = new Worker(policy(), { type: "module" });
  worker.onmessage = ({ data: step }: MessageEvent<Step>) => told(step);
  worker.postMessage({ count: data.ids.length, axes: data.axes, values: data.values });
  return worker;
}
