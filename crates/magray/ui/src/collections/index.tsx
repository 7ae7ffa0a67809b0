// Collections: what they hold, page by page, by query, and as a picture.
// Changes nothing.

import { useEffect, useState } from "preact/hooks";
import { Badge, Card, Empty, Notice, Tabs, useAction } from "../parts";
import { count } from "../state/numbers";
import type { Live } from "../state/live";
import { type Collection, describe, listCollections, type Point, scroll } from "./api";
import { Points } from "./found";
import { CollectionMap } from "./map";
import { SearchForm } from "./search_form";

type Tab = "map" | "browse" | "query";

const TABS = [
  ["map", "Map"],
  ["browse", "Browse"],
  ["query", "Query"],
] as const;

export function Collections(_: { live: Live }) {
  const [all, setAll] = useState<Collection[] | null>(null);
  const [chosen, choose] = useState<string | null>(null);
  const [tab, setTab] = useState<Tab>("map");
  const action = useAction();
  useEffect(() => {
    void action.run(async () => {
      const found = await Promise.all((await listCollections()).map(describe));
      setAll(found);
      choose((before) => before ?? found[0]?.name ?? null);
    });
  }, []);
  const collection = all?.find((one) => one.name === chosen) ?? null;
  return (
    <>
      <div class="page-head">
        <h1>Collections</h1>
        {collection && <Tabs label="How to look at it" tabs={TABS} chosen={tab} choose={setTab} />}
      </div>
      <div class="stack">
        {action.problem && <Notice tone="bad">{action.problem}</Notice>}
        {all?.length === 0 && <Empty title="There is no collection">Make one with `magray index add NAME FILES`, or by Qdrant's API.</Empty>}
        {all && all.length > 0 && (
          <ul class="collections" aria-label="Collections">
            {all.map((one) => (
              <li key={one.name}>
                <button type="button" aria-pressed={one.name === chosen} onClick={() => choose(one.name)}>
                  <strong>{one.name}</strong>
                  <span>
                    {count(one.points)} points{one.vectors[0] ? ` · ${one.vectors[0].size} numbers` : ""}
                  </span>
                  {one.textField !== null && <Badge tone="accent">words too</Badge>}
                </button>
              </li>
            ))}
          </ul>
        )}
        {collection && tab === "map" && <CollectionMap key={collection.name} collection={collection} />}
        {collection && tab === "browse" && <Browse key={collection.name} collection={collection} />}
        {collection && tab === "query" && <Ask key={collection.name} collection={collection} />}
      </div>
    </>
  );
}

const PAGE = 20;

function Browse({ collection }: { collection: Collection }) {
  const [pages, setPages] = useState<{ points: Point[]; next: number | string | null }>({ points: [], next: 0 });
  const action = useAction();
  const more = (offset: number | string | null) =>
    action.run(async () => {
      const page = await scroll(collection.name, { limit: PAGE, with_payload: true, ...(offset === null || offset === 0 ? {} : { offset }) });
      setPages((before) => ({ points: [...before.points, ...page.points], next: page.next }));
    });
  useEffect(() => void more(0), []);
  return (
    <Card title="Points" end={`${pages.points.length} of ${count(collection.points)}`}>
      {action.problem && <Notice tone="bad">{action.problem}</Notice>}
      {pages.points.length === 0 && !action.busy ? <Empty title="The collection is empty" /> : <Points points={pages.points} textField={collection.textField} />}
      {pages.next !== null && pages.points.length > 0 && (
        <button type="button" class="button" disabled={action.busy} onClick={() => void more(pages.next)}>
          More
        </button>
      )}
    </Card>
  );
}

function Ask({ collection }: { collection: Collection }) {
  const [points, setPoints] = useState<Point[] | null>(null);
  return (
    <div class="columns">
      <Card title="Query">
        <SearchForm collection={collection} found={setPoints} />
      </Card>
      <Card title="Found" end={points ? `${points.length} points` : undefined}>
        {points?.length ? <Points points={points} textField={collection.textField} /> : <Empty title={points ? "Nothing meets it" : "Nothing asked yet"} />}
      </Card>
    </div>
  );
}
