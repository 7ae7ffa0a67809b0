// A line over the last minute, with its area. Drawn in the room that it gets; a sentence says the same.

import { useWidth } from "./index";

const HEIGHT = 92;

export function Area(props: { values: number[]; label: string; colour?: string; format: (value: number) => string }) {
  const [element, width] = useWidth<HTMLDivElement>();
  const most = Math.max(1, ...props.values);
  const top = niceAbove(most);
  const x = (at: number) => (at / Math.max(1, props.values.length - 1)) * width;
  const y = (value: number) => HEIGHT - 4 - (value / top) * (HEIGHT - 16);
  const line = props.values.map((value, at) => `${at === 0 ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const colour = props.colour ?? "var(--accent)";
  return (
    <div ref={element} class="area">
      <svg width={width} height={HEIGHT} role="img" aria-label={`${props.label}, the last minute: at most ${props.format(most)}, at last ${props.format(props.values.at(-1) ?? 0)}`}>
        {[0, 0.5, 1].map((part) => (
          <line key={part} x1="0" x2={width} y1={y(top * part)} y2={y(top * part)} stroke="var(--line)" />
        ))}
        <path d={`${line}L${width} ${HEIGHT - 4}L0 ${HEIGHT - 4}Z`} fill={colour} opacity="0.12" />
        <path d={line} fill="none" stroke={colour} stroke-width="2" stroke-linejoin="round" />
        <text x="0" y="9" class="axis">
          {props.format(top)}
        </text>
      </svg>
    </div>
  );
}

function niceAbove(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 2.5, 5, 10]) if (value <= step * power) return step * power;
  return value;
}
