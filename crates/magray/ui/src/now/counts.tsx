// Sizes of batches, and answers of the CPU in place of a GPU by their reason: counts as bars.

import { Card, Empty } from "../parts";
import { count, words } from "../state/numbers";
import type { Snapshot } from "../state/types";
import type { Minute } from "./minute";

export function Batches({ minute, bounds }: { minute: Minute; bounds: number[] }) {
  const bars = minute.batches.map((requests, at) => {
    const [low, high] = [(bounds[at - 1] ?? 0) + 1, bounds[at]];
    return { name: high === undefined ? `${low}+` : low === high ? `${low}` : `${low}–${high}`, requests };
  });
  const all = bars.some((bar) => bar.requests > 0);
  return (
    <Card title="Batch sizes" hint="texts computed together">
      {all ? <Bars bars={bars} unit="requests" /> : <Empty title="No batch in the last minute" />}
    </Card>
  );
}

/** What each reason means. */
const REASONS: Record<string, string> = {
  out_of_memory: "GPU memory was full",
  unhealthy: "GPU worker failed",
  hot: "GPU was too hot",
  wrong_answers: "GPU gave wrong answers",
  lost: "GPU was gone",
  starting: "GPU was starting",
  waking: "weights were on their way",
  not_loaded: "weights could not be loaded",
};

export function Fallbacks({ now }: { now: Snapshot }) {
  const bars = now.fallbacks.map(({ reason, requests }) => ({ name: REASONS[reason] ?? words(reason), requests }));
  return (
    <Card title="Fallbacks to the CPU" hint="since the start, by reason">
      {bars.length > 0 ? <Bars bars={bars} unit="requests" /> : <Empty title="No request">Every request was computed where it was meant to be.</Empty>}
    </Card>
  );
}

function Bars({ bars, unit }: { bars: { name: string; requests: number }[]; unit: string }) {
  const most = Math.max(1, ...bars.map((bar) => bar.requests));
  return (
    <dl class="bars">
      {bars.map((bar) => (
        <div key={bar.name}>
          <dt>{bar.name}</dt>
          <dd class="bar" aria-hidden="true">
            <i style={{ transform: `scaleX(${bar.requests / most})` }} />
          </dd>
          <dd class="right" title={`${bar.requests} ${unit}`}>
            {count(bar.requests)}
          </dd>
        </div>
      ))}
    </dl>
  );
}
