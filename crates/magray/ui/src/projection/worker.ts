// Beside the page: refines the picture of a collection, and sends it as it gets better.
// Asks the server nothing: the page hands in what is drawn.

import { begin, edgesOf, round } from "./layout";
import { neighboursOf, random } from "./neighbours";

export interface Task {
  count: number;
  axes: number;
  values: Float32Array;
}

export interface Step {
  places: Float32Array;
  part: number;
  doing: "neighbours" | "layout" | "done";
}

const NEIGHBOURS = 10;
const SEED = 42;
/** Pictures between two of these are not sent: copying them would take longer than it helps. */
const SEND_MS = 120;

interface Scope {
  onmessage: ((event: MessageEvent<Task>) => void) | null;
  postMessage(message: Step, transfer: Transferable[]): void;
}

const scope = globalThis as unknown as Scope;

scope.onmessage = ({ data }) => {
  const { count, axes, values } = data;
  const chance = random(SEED);
  const places = begin(values, axes, count);
  const send = (doing: Step["doing"], part: number) => {
    const copy = places.slice();
    scope.postMessage({ places: copy, part, doing }, [copy.buffer]);
  };
  if (count < 3) return send("done", 1);
  const trees = count > 40_000 ? 5 : 8;
  const neighbours = neighboursOf({ count, axes, values }, Math.min(NEIGHBOURS, count - 1), trees, chance, (part) => send("neighbours", part * 0.4));
  const edges = edgesOf(neighbours, count);
  const rounds = count > 40_000 ? 50 : count > 8_000 ? 100 : 200;
  let sent = performance.now();
  for (let at = 0; at < rounds; at += 1) {
    round(places, edges, count, 1 - at / rounds, chance);
    if (performance.now() - sent > SEND_MS) {
      send("layout", 0.4 + (0.6 * (at + 1)) / rounds);
      sent = performance.now();
    }
  }
  send("done", 1);
};
