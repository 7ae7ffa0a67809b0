// Finds for each point some of its nearest, by trees of random planes: nearly all of them, in far less than every pair.
// Knows no page; chance comes from a seed, so that the same points look the same again.

export type Random = () => number;

/** A generator of numbers from 0 to 1 (mulberry32). */
export function random(seed: number): Random {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

export interface Points {
  count: number;
  axes: number;
  /** Point by point. */
  values: Float32Array;
}

export interface Neighbours {
  each: number;
  /** Point by point, the nearest first; the point itself where there are fewer. */
  ids: Int32Array;
  /** Squared. */
  distances: Float32Array;
}

const LEAF = 28;

/** `told`: how much is done, from 0 to 1. */
export function neighboursOf(points: Points, each: number, trees: number, chance: Random, told: (part: number) => void): Neighbours {
  const { count } = points;
  const ids = new Int32Array(count * each);
  const distances = new Float32Array(count * each).fill(Infinity);
  for (let point = 0; point < count; point += 1) ids.fill(point, point * each, (point + 1) * each);
  const found = { each, ids, distances };
  const order = new Int32Array(count);
  for (let tree = 0; tree < trees; tree += 1) {
    for (let at = 0; at < count; at += 1) order[at] = at;
    split(points, order, 0, count, chance, found);
    told((tree + 1) / (trees + 1));
  }
  friends(points, found);
  told(1);
  return found;
}

/** Halves the points by a plane between two of them, until few are left: those are compared with each other. */
function split(points: Points, order: Int32Array, from: number, to: number, chance: Random, found: Neighbours): void {
  const stack = [from, to];
  while (stack.length > 0) {
    const end = stack.pop()!;
    const start = stack.pop()!;
    if (end - start <= LEAF) {
      compare(points, order, start, end, found);
      continue;
    }
    const middle = halve(points, order, start, end, chance);
    stack.push(start, middle, middle, end);
  }
}

function halve(points: Points, order: Int32Array, start: number, end: number, chance: Random): number {
  const { axes, values } = points;
  const a = order[start + Math.floor(chance() * (end - start))]! * axes;
  const b = order[start + Math.floor(chance() * (end - start))]! * axes;
  const normal = new Float32Array(axes);
  let offset = 0;
  for (let axis = 0; axis < axes; axis += 1) {
    const difference = values[a + axis]! - values[b + axis]!;
    normal[axis] = difference;
    offset += (difference * (values[a + axis]! + values[b + axis]!)) / 2;
  }
  let low = start;
  let high = end - 1;
  while (low <= high) {
    const point = order[low]!;
    const at = point * axes;
    let side = -offset;
    for (let axis = 0; axis < axes; axis += 1) side += values[at + axis]! * normal[axis]!;
    if (side > 0) {
      low += 1;
    } else {
      order[low] = order[high]!;
      order[high] = point;
      high -= 1;
    }
  }
  // Equal points lie on one side: any half will do.
  const isUseless = low - start < (end - start) / 20 || end - low < (end - start) / 20;
  return isUseless ? (start + end) >> 1 : low;
}

function compare(points: Points, order: Int32Array, start: number, end: number, found: Neighbours): void {
  for (let one = start; one < end; one += 1) {
    for (let other = one + 1; other < end; other += 1) offer(points, order[one]!, order[other]!, found);
  }
}

function offer(points: Points, a: number, b: number, found: Neighbours): void {
  const { axes, values } = points;
  const { each, distances } = found;
  const most = Math.max(distances[a * each + each - 1]!, distances[b * each + each - 1]!);
  let distance = 0;
  for (let axis = 0, atA = a * axes, atB = b * axes; axis < axes; axis += 1, atA += 1, atB += 1) {
    const difference = values[atA]! - values[atB]!;
    distance += difference * difference;
  }
  if (distance >= most) return;
  insert(found, a, b, distance);
  insert(found, b, a, distance);
}

function insert(found: Neighbours, point: number, other: number, distance: number): void {
  const { each, ids, distances } = found;
  const first = point * each;
  let at = first + each - 1;
  if (distance >= distances[at]!) return;
  for (let known = first; known < first + each; known += 1) if (ids[known] === other && distances[known]! < Infinity) return;
  while (at > first && distances[at - 1]! > distance) {
    distances[at] = distances[at - 1]!;
    ids[at] = ids[at - 1]!;
    at -= 1;
  }
  distances[at] = distance;
  ids[at] = other;
}

/** The nearest of one's nearest are often near too. */
function friends(points: Points, found: Neighbours): void {
  const { each, ids } = found;
  const some = Math.min(each, 5);
  for (let point = 0; point < points.count; point += 1) {
    for (let at = 0; at < some; at += 1) {
      const friend = ids[point * each + at]!;
      for (let next = 0; next < some; next += 1) {
        const other = ids[friend * each + next]!;
        if (other !== point) offer(points, point, other, found);
      }
    }
  }
}
