// The picture itself: zoom, pan, lasso, by mouse, touch and keyboard.

import { useEffect, useRef, useState } from "preact/hooks";
import { Tabs, useWidth } from "../parts";
import { type Camera, fit, inside, paint, paintRound, pixelOf } from "./painting";
import { PALETTE } from "./palette";

interface Props {
  places: Float32Array;
  colours: Uint8Array | null;
  selected: Uint8Array | null;
  select: (points: Uint8Array | null) => void;
}

/** So many are drawn as round points; more would take too long for a frame. */
const ROUND_MAX = 6000;

const MODES = [
  ["move", "Move"],
  ["lasso", "Lasso"],
] as const;

export function Canvas({ places, colours, selected, select }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [mode, setMode] = useState<"move" | "lasso">("move");
  const [line, setLine] = useState<[number, number][]>([]);
  const [camera, setCamera] = useState<Camera | null>(null);
  const height = Math.max(280, Math.min(560, Math.round(width * 0.68)));
  // Until the reader moves it, the picture shows all points, also while they move.
  const seen = camera ?? fit(places, width, height);
  const image = useRef<ImageData | null>(null);

  useEffect(() => {
    const frame = requestAnimationFrame(() => {
      const target = canvas.current;
      const context = target?.getContext("2d");
      if (!target || !context) return;
      const ratio = Math.min(2, devicePixelRatio || 1);
      const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
      if (target.width !== wide || target.height !== high || !image.current) {
        target.width = wide;
        target.height = high;
        image.current = context.createImageData(wide, high);
      }
      const style = getComputedStyle(target);
      const own = (name: string) => pixelOf(style.getPropertyValue(name).trim());
      const scene = { places, colours, selected, palette: PALETTE.map(pixelOf), plain: own("--weights"), faded: own("--line-strong") };
      if (places.length / 2 <= ROUND_MAX) {
        paintRound(context, scene, seen, ratio);
      } else {
        paint(image.current, scene, seen, ratio);
        context.putImageData(image.current, 0, 0);
      }
      if (line.length > 1) {
        context.save();
        context.scale(ratio, ratio);
        context.beginPath();
        for (const [x, y] of line) context.lineTo(x, y);
        context.closePath();
        context.strokeStyle = style.getPropertyValue("--accent");
        context.globalAlpha = 0.12;
        context.fillStyle = style.getPropertyValue("--accent");
        context.fill();
        context.globalAlpha = 1;
        context.lineWidth = 1.5;
        context.stroke();
        context.restore();
      }
    });
    return () => cancelAnimationFrame(frame);
  });

  const at = (event: PointerEvent | WheelEvent): [number, number] => {
    const bounds = canvas.current!.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  };
  const zoom = (by: number, [x, y]: [number, number] = [width / 2, height / 2]) => {
    const scale = seen.scale * by;
    // What lies under the pointer stays there.
    setCamera({ scale, x: seen.x + (x - width / 2) * (1 / seen.scale - 1 / scale), y: seen.y + (y - height / 2) * (1 / seen.scale - 1 / scale) });
  };
  const pan = (x: number, y: number) => setCamera({ ...seen, x: seen.x - x / seen.scale, y: seen.y - y / seen.scale });
  const choose = (ring: [number, number][]) => select(inside(places, ring, seen, width, height));
  const everything: [number, number][] = [
    [0, 0],
    [width, 0],
    [width, height],
    [0, height],
  ];
  const keys: Record<string, () => void> = {
    ArrowLeft: () => pan(40, 0),
    ArrowRight: () => pan(-40, 0),
    ArrowUp: () => pan(0, 40),
    ArrowDown: () => pan(0, -40),
    "+": () => zoom(1.25),
    "=": () => zoom(1.25),
    "-": () => zoom(0.8),
    "0": () => setCamera(null),
    Escape: () => select(null),
  };

  return (
    <div class="map">
      <div class="row between">
        <Tabs label="What dragging does" tabs={MODES} chosen={mode} choose={setMode} />
        <div class="row">
          <button type="button" class="button slim" onClick={() => choose(everything)}>
            Select what is in view
          </button>
          {selected && (
            <button type="button" class="button slim quiet" onClick={() => select(null)}>
              Select nothing
            </button>
          )}
          <button type="button" class="button slim quiet" onClick={() => setCamera(null)}>
            Show all
          </button>
        </div>
      </div>
      <div ref={box}>
        <canvas
          ref={canvas}
          class={mode}
          tabIndex={0}
          role="application"
          aria-label={`Map of ${places.length / 2} points. Arrows move it, plus and minus zoom, 0 shows all, Escape selects nothing.`}
          style={{ width: `${width}px`, height: `${height}px` }}
          onWheel={(event) => {
            event.preventDefault();
            zoom(Math.exp(-event.deltaY / 400), at(event));
          }}
          onPointerDown={(event) => {
            event.currentTarget.setPointerCapture(event.pointerId);
            if (mode === "lasso") setLine([at(event)]);
          }}
          onPointerMove={(event) => {
            if (event.buttons === 0) return;
            if (mode === "move") pan(event.movementX, event.movementY);
            else setLine((before) => [...before, at(event)]);
          }}
          onPointerUp={() => {
            if (mode === "lasso" && line.length > 2) choose(line);
            setLine([]);
          }}
          onKeyDown={(event) => {
            const does = keys[event.key];
            if (!does) return;
            event.preventDefault();
            does();
          }}
        />
      </div>
    </div>
  );
}
