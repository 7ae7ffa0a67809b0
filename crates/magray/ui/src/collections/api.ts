// Collections as the page asks for them, in Qdrant's API.
// Keeps nothing: each view asks again.

import { askJson } from "../state/server";

export type Payload = Record<string, unknown>;

export interface Collection {
  name: string;
  points: number;
  /** By name, "" for the one without; only those with one vector a point. */
  vectors: { name: string; size: number; distance: string }[];
  /** The field that is searched by words. */
  textField: string | null;
  /** The model that embeds its texts, where one is remembered. */
  model: string | null;
}

export interface Point {
  id: number | string;
  payload: Payload;
  score?: number;
}

interface Answer<T> {
  result: T;
}

type Params = { size: number; distance: string; multivector_config?: unknown };

export async function listCollections(): Promise<string[]> {
  const answer = await askJson<Answer<{ collections: { name: string }[] }>>("/collections");
  return answer.result.collections.map((collection) => collection.name).sort();
}

export async function describe(name: string): Promise<Collection> {
  const answer = await askJson<Answer<{ points_count: number; config: { params: { vectors?: Params | Record<string, Params> }; text_field?: string; metadata?: Record<string, unknown> } }>>(
    `/collections/${encodeURIComponent(name)}`,
  );
  const { config, points_count } = answer.result;
  const given = config.params.vectors ?? {};
  const named = "size" in given ? { "": given as Params } : (given as Record<string, Params>);
  const vectors = Object.entries(named)
    .filter(([, params]) => !params.multivector_config)
    .map(([vector, params]) => ({ name: vector, size: params.size, distance: params.distance }));
  const model = config.metadata?.["model"];
  return { name, points: points_count, vectors, textField: config.text_field ?? null, model: typeof model === "string" ? model : null };
}

export async function scroll(name: string, body: unknown): Promise<{ points: Point[]; next: number | string | null }> {
  const answer = await askJson<Answer<{ points: Point[]; next_page_offset: number | string | null }>>(`/collections/${encodeURIComponent(name)}/points/scroll`, { method: "POST", body });
  return { points: answer.result.points.map(whole), next: answer.result.next_page_offset };
}

export async function retrieve(name: string, ids: (number | string)[]): Promise<Point[]> {
  const answer = await askJson<Answer<Point[]>>(`/collections/${encodeURIComponent(name)}/points`, { method: "POST", body: { ids, with_payload: true } });
  return answer.result.map(whole);
}

export function queryRoute(name: string): string {
  return `/collections/${encodeURIComponent(name)}/points/query`;
}

export async function query(name: string, body: unknown): Promise<Point[]> {
  const answer = await askJson<Answer<{ points: Point[] }>>(queryRoute(name), { method: "POST", body });
  return answer.result.points.map(whole);
}

function whole(point: Point): Point {
  return { ...point, payload: point.payload ?? {} };
}

export interface Wanted {
  text: string;
  limit: number;
  filter: unknown;
  /** The part of the words in the ranking, from 0 (by meaning alone) to 1. */
  words: number;
}

/** What is sent to find points by meaning, by words, or by both with weights. */
export function queryBody(collection: Collection, wanted: Wanted): Record<string, unknown> {
  const { text, limit, filter, words } = wanted;
  const vector = collection.vectors[0];
  const using = vector?.name ? { using: vector.name } : {};
  const nearest = { query: { nearest: collection.model ? { text, model: collection.model } : { text } }, ...using };
  const byWords = { query: { text: { query: text } }, using: collection.textField };
  const rest = { limit, with_payload: true, ...(filter === null ? {} : { filter }) };
  if (collection.textField === null || words === 0) return { ...nearest, ...rest };
  if (words === 1) return { ...byWords, ...rest };
  const many = { limit: Math.max(50, limit), ...(filter === null ? {} : { filter }) };
  return {
    prefetch: [
      { ...nearest, ...many },
      { ...byWords, ...many },
    ],
    query: { rrf: { k: 60, weights: [Number((1 - words).toFixed(2)), words] } },
    limit,
    with_payload: true,
  };
}

/** The text of a point: its field of texts, or the longest text that it has. */
export function textOf(point: Point, field: string | null): string {
  const known = field ? point.payload[field] : undefined;
  if (typeof known === "string") return known;
  const texts = Object.values(point.payload).filter((value): value is string => typeof value === "string");
  return texts.sort((a, b) => b.length - a.length)[0] ?? JSON.stringify(point.payload);
}
