// Lays points out in the plane so that neighbours stay together, as UMAP does: neighbours attract, others repel.
// Knows no page. A step is a part of the work, so that a picture can be shown between two.

import type { Neighbours, Random } from "./neighbours";

// The curve is 1 / (1 + d²): UMAP's own, with exponents of 1.58 and 0.9, looks alike and needs a power for each pair.
const REPELLED = 3;
const STEP_MAX = 4;

export interface Edges {
  from: Int32Array;
  to: Int32Array;
  /** How often an edge comes: it is used in this part of the rounds. */
  weight: Float32Array;
}

/** How strongly neighbours belong together, from both sides. */
export function edgesOf(neighbours: Neighbours, count: number): Edges {
  const { each, ids, distances } = neighbours;
  const size = count * each;
  const from = new Int32Array(size);
  const to = new Int32Array(size);
  const weight = new Float32Array(size);
  let edges = 0;
  const target = Math.log2(each);
  for (let point = 0; point < count; point += 1) {
    const first = point * each;
    const nearest = Math.sqrt(distances[first]!);
    if (!Number.isFinite(nearest)) continue;
    const width = widthOf(distances, first, each, nearest, target);
    for (let at = first; at < first + each && distances[at]! < Infinity; at += 1) {
      from[edges] = point;
      to[edges] = ids[at]!;
      weight[edges] = Math.exp(-Math.max(0, Math.sqrt(distances[at]!) - nearest) / width);
      edges += 1;
    }
  }
  return { from: from.subarray(0, edges), to: to.subarray(0, edges), weight: weight.subarray(0, edges) };
}

/** The width at which the weights of a point's neighbours add up to what is wanted. */
function widthOf(distances: Float32Array, first: number, each: number, nearest: number, target: number): number {
  let low = 0;
  let high = Infinity;
  let width = 1;
  for (let round = 0; round < 24; round += 1) {
    let sum = 0;
    for (let at = first; at < first + each && distances[at]! < Infinity; at += 1) sum += Math.exp(-Math.max(0, Math.sqrt(distances[at]!) - nearest) / width);
    if (Math.abs(sum - target) < 1e-3) break;
    if (sum > target) {
      high = width;
      width = (low + high) / 2;
    } else {
      low = width;
      width = high === Infinity ? width * 2 : (low + high) / 2;
    }
  }
  return Math.max(width, 1e-6);
}

/** Where the points begin: the two first directions, as large as the attraction expects. */
export function begin(values: Float32Array, axes: number, count: number): Float32Array {
  const places = new Float32Array(count * 2);
  for (let axis = 0; axis < Math.min(2, axes); axis += 1) {
    let most = 1e-9;
    for (let point = 0; point < count; point += 1) most = Math.max(most, Math.abs(values[point * axes + axis]!));
    for (let point = 0; point < count; point += 1) places[point * 2 + axis] = (values[point * axes + axis]! / most) * 10;
  }
  return places;
}

/** One round over all edges; `heat` falls from 1 to 0 over the rounds. */
export function round(places: Float32Array, edges: Edges, count: number, heat: number, chance: Random): void {
  const { from, to, weight } = edges;
  const most = STEP_MAX * heat;
  // Numbers for this round alone: a call for each would be most of the work.
  let state = Math.floor(chance() * 4294967295) | 1;
  for (let edge = 0; edge < from.length; edge += 1) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    if (weight[edge]! * 4294967296 < state >>> 0) continue;
    const a = from[edge]! * 2;
    const b = to[edge]! * 2;
    let atX = places[a]!;
    let atY = places[a + 1]!;
    let x = atX - places[b]!;
    let y = atY - places[b + 1]!;
    const pull = (-2 / (1 + x * x + y * y)) * heat;
    x = bounded(pull * x, most);
    y = bounded(pull * y, most);
    atX += x;
    atY += y;
    places[b]! -= x;
    places[b + 1]! -= y;
    for (let other = 0; other < REPELLED; other += 1) {
      state ^= state << 13;
      state ^= state >>> 17;
      state ^= state << 5;
      const c = ((state >>> 0) % count) * 2;
      if (c === a) continue;
      x = atX - places[c]!;
      y = atY - places[c + 1]!;
      const squared = x * x + y * y;
      const push = (2 / ((0.001 + squared) * (1 + squared))) * heat;
      atX += bounded(push * x, most);
      atY += bounded(push * y, most);
    }
    places[a] = atX;
    places[a + 1] = atY;
  }
}

function bounded(step: number, most: number): number {
  return step > most ? most : step < -most ? -most : step;
}
