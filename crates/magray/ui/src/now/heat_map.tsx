// How long requests took, second by second: a column a second, a row a range of latencies, darker for more.

import { useEffect, useRef } from "preact/hooks";
import { Card, Empty, useWidth } from "../parts";
import { quantile, seconds } from "../state/numbers";
import { type Minute, SECONDS } from "./minute";

const ROW = 19;
const LEFT = 54;
const BELOW = 18;

export function HeatMap({ minute, bounds }: { minute: Minute; bounds: number[] }) {
  const [element, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const rows = bounds.length + 1;
  const height = rows * ROW + BELOW;
  const all = minute.latencies.reduce((sum, value) => sum + value, 0);
  const quantiles = [0.5, 0.95, 0.99].map((part) => {
    const found = quantile(minute.latencies, bounds, part);
    return `${part * 100} % within ${found === null ? "–" : seconds(found / 1000)}`;
  });
  useEffect(() => {
    if (canvas.current) draw(canvas.current, { minute, bounds, width, height });
  });
  return (
    <Card title="Latency" hint="from arrival to answer" end={all > 0 ? quantiles[1] : undefined}>
      <div ref={element}>
        {all === 0 ? (
          <Empty title="No request in the last minute">A column for each second appears with the first.</Empty>
        ) : (
          <canvas ref={canvas} class="heat" role="img" aria-label={`Latencies of ${all} requests of the last minute: ${quantiles.join(", ")}`} />
        )}
      </div>
    </Card>
  );
}

function draw(canvas: HTMLCanvasElement, of: { minute: Minute; bounds: number[]; width: number; height: number }): void {
  const { minute, bounds, width, height } = of;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const paint = canvas.getContext("2d");
  if (!paint) return;
  const style = getComputedStyle(canvas);
  const heat = style.getPropertyValue("--heat").trim().split(" ").join(",");
  const ink = style.getPropertyValue("--ink-3").trim();
  paint.scale(scale, scale);
  paint.font = `11px ${style.fontFamily}`;
  paint.textBaseline = "middle";
  paint.fillStyle = ink;
  const rows = bounds.length + 1;
  for (let row = 0; row < rows; row += 2) {
    const bound = bounds[row];
    const label = bound === undefined ? `> ${seconds((bounds.at(-1) ?? 0) / 1000)}` : seconds(bound / 1000).replace(".0", "");
    paint.fillText(label, 0, (rows - row - 0.5) * ROW);
  }
  paint.fillText("60 s ago", LEFT, height - 6);
  paint.textAlign = "right";
  paint.fillText("now", width, height - 6);
  const most = Math.max(1, ...minute.seconds.flatMap((second) => second?.latencies ?? []));
  const column = (width - LEFT) / SECONDS;
  for (const [at, second] of minute.seconds.entries()) {
    for (let row = 0; row < rows; row += 1) {
      const requests = second?.latencies[row] ?? 0;
      const strength = requests === 0 ? 0.05 : 0.2 + 0.8 * Math.sqrt(requests / most);
      paint.fillStyle = `rgba(${heat},${strength.toFixed(3)})`;
      paint.beginPath();
      paint.roundRect(LEFT + at * column, (rows - row - 1) * ROW, Math.max(1, column - 1.5), ROW - 1.5, 2);
      paint.fill();
    }
  }
}
