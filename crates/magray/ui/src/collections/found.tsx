// Points as a list: the text of each, its other fields, its score.
// Payloads are text, whatever they look like.

import { type Point, textOf } from "./api";

const TEXT_MAX = 420;

export function Points({ points, textField }: { points: Point[]; textField: string | null }) {
  return (
    <ol class="points">
      {points.map((point) => {
        const text = textOf(point, textField);
        const others = Object.entries(point.payload).filter(([, value]) => value !== text);
        return (
          <li key={String(point.id)}>
            <div class="row between">
              <code class="muted">{String(point.id)}</code>
              {point.score !== undefined && <b class="score">{point.score.toFixed(4)}</b>}
            </div>
            <p class="text">{text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}…` : text}</p>
            {others.length > 0 && (
              <ul class="fields">
                {others.slice(0, 8).map(([name, value]) => (
                  <li key={name}>
                    <span>{name}</span> {short(value)}
                  </li>
                ))}
              </ul>
            )}
          </li>
        );
      })}
    </ol>
  );
}

function short(value: unknown): string {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}
