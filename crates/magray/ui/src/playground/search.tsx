// Searches a collection by meaning, by words, or by both, with filters.

import { useEffect, useState } from "preact/hooks";
import { type Collection, describe, listCollections, type Point, queryBody, queryRoute } from "../collections/api";
import { Points } from "../collections/found";
import { SearchForm } from "../collections/search_form";
import { Card, Empty, Field, Notice, useAction } from "../parts";
import { Sample } from "./sample";

export function Search() {
  const [names, setNames] = useState<string[] | null>(null);
  const [collection, setCollection] = useState<Collection | null>(null);
  const [points, setPoints] = useState<Point[] | null>(null);
  const [body, setBody] = useState<Record<string, unknown> | null>(null);
  const action = useAction();
  const choose = (name: string) =>
    action.run(async () => {
      const chosen = await describe(name);
      setCollection(chosen);
      setPoints(null);
      setBody(queryBody(chosen, { text: "", words: 0.5, limit: 10, filter: null }));
    });
  useEffect(() => {
    void action.run(async () => {
      const all = await listCollections();
      setNames(all);
      if (all[0]) await choose(all[0]);
    });
  }, []);
  if (action.problem) return <Notice tone="bad">{action.problem}</Notice>;
  if (names?.length === 0) return <Empty title="There is no collection">Make one with `magray index add`, or by Qdrant's API.</Empty>;
  return (
    <div class="columns">
      <Card title="Search">
        {names && (
          <div class="stack">
            <Field label="Collection">
              <select value={collection?.name ?? ""} onChange={(event) => void choose(event.currentTarget.value)}>
                {names.map((name) => (
                  <option key={name} value={name}>
                    {name}
                  </option>
                ))}
              </select>
            </Field>
            {collection && <SearchForm key={collection.name} collection={collection} found={setPoints} changed={setBody} />}
          </div>
        )}
        {collection && body && <Sample route={queryRoute(collection.name)} body={body} />}
      </Card>
      <Card title="Found" end={points ? `${points.length} points` : undefined}>
        {points?.length ? <Points points={points} textField={collection?.textField ?? null} /> : <Empty title={points ? "Nothing meets it" : "Nothing asked yet"} />}
      </Card>
    </div>
  );
}
