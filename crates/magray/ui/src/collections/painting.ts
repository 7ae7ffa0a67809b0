// Paints points into pixels, and finds those inside a line that was drawn around them.
// A hundred thousand take some milliseconds: each is a few pixels of one image, without a call for each.

export interface Camera {
  /** Pixels of the screen for one unit. */
  scale: number;
  /** What lies in the middle. */
  x: number;
  y: number;
}

export interface Scene {
  places: Float32Array;
  /** Colour of each point: its place in the palette. */
  colours: Uint8Array | null;
  selected: Uint8Array | null;
  /** As 0xAABBGGRR. */
  palette: number[];
  plain: number;
  faded: number;
}

/** The camera that shows all points. */
export function fit(places: Float32Array, width: number, height: number): Camera {
  let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let at = 0; at < places.length; at += 2) {
    left = Math.min(left, places[at]!);
    right = Math.max(right, places[at]!);
    top = Math.min(top, places[at + 1]!);
    bottom = Math.max(bottom, places[at + 1]!);
  }
  if (!(right >= left)) return { scale: 1, x: 0, y: 0 };
  const scale = 0.92 * Math.min(width / Math.max(right - left, 1e-6), height / Math.max(bottom - top, 1e-6));
  return { scale, x: (left + right) / 2, y: (top + bottom) / 2 };
}

const DISCS = [1, 2, 3, 4, 5, 6].map(discOf);

function discOf(diameter: number): [number, number][] {
  const radius = diameter / 2;
  const disc: [number, number][] = [];
  for (let y = 0; y < diameter; y += 1) {
    for (let x = 0; x < diameter; x += 1) if (Math.hypot(x + 0.5 - radius, y + 0.5 - radius) <= radius + 0.1) disc.push([x - (diameter >> 1), y - (diameter >> 1)]);
  }
  return disc;
}

/** `ratio`: pixels of the image for one of the screen. */
export function paint(image: ImageData, scene: Scene, camera: Camera, ratio: number): void {
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0);
  const { width, height } = image;
  const { places, colours, selected, palette, plain, faded } = scene;
  const count = places.length / 2;
  const diameter = Math.max(1, Math.min(DISCS.length, Math.round(ratio * (count > 50_000 ? 1.6 : count > 10_000 ? 2.2 : count > 1_000 ? 3.4 : 5))));
  const disc = DISCS[diameter - 1]!;
  const scale = camera.scale * ratio;
  const middleX = width / 2 - camera.x * scale;
  const middleY = height / 2 - camera.y * scale;
  // Those that are selected are painted over the others.
  for (let pass = 0; pass < (selected ? 2 : 1); pass += 1) {
    for (let point = 0; point < count; point += 1) {
      if (selected && selected[point] !== pass) continue;
      const x = (places[point * 2]! * scale + middleX) | 0;
      const y = (places[point * 2 + 1]! * scale + middleY) | 0;
      if (x < 4 || y < 4 || x >= width - 4 || y >= height - 4) continue;
      const colour = selected && pass === 0 ? faded : colours ? (palette[colours[point]!] ?? plain) : plain;
      for (const [right, down] of disc) pixels[(y + down) * width + x + right] = colour;
    }
  }
}

/** The same for few points, each round and a little transparent. */
export function paintRound(context: CanvasRenderingContext2D, scene: Scene, camera: Camera, ratio: number): void {
  const { width, height } = context.canvas;
  const { places, colours, selected, palette, plain, faded } = scene;
  const count = places.length / 2;
  const radius = ratio * (count > 2_000 ? 2 : count > 400 ? 3 : 4);
  const scale = camera.scale * ratio;
  context.clearRect(0, 0, width, height);
  context.globalAlpha = 0.8;
  for (let pass = 0; pass < (selected ? 2 : 1); pass += 1) {
    for (let point = 0; point < count; point += 1) {
      if (selected && selected[point] !== pass) continue;
      const colour = selected && pass === 0 ? faded : colours ? (palette[colours[point]!] ?? plain) : plain;
      context.fillStyle = `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
      context.beginPath();
      context.arc((places[point * 2]! - camera.x) * scale + width / 2, (places[point * 2 + 1]! - camera.y) * scale + height / 2, radius, 0, 7);
      context.fill();
    }
  }
  context.globalAlpha = 1;
}

/** Which points lie inside a line around them, in pixels of the screen: a 1 for each that does. */
export function inside(places: Float32Array, line: [number, number][], camera: Camera, width: number, height: number): Uint8Array {
  const found = new Uint8Array(places.length / 2);
  const ring = line.map(([x, y]) => [(x - width / 2) / camera.scale + camera.x, (y - height / 2) / camera.scale + camera.y] as const);
  for (let point = 0; point < found.length; point += 1) {
    const x = places[point * 2]!;
    const y = places[point * 2 + 1]!;
    let isIn = false;
    for (let at = 0, before = ring.length - 1; at < ring.length; before = at, at += 1) {
      const [ax, ay] = ring[at]!;
      const [bx, by] = ring[before]!;
      if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) isIn = !isIn;
    }
    found[point] = isIn ? 1 : 0;
  }
  return found;
}

/** A colour of a style sheet as a pixel. */
export function pixelOf(colour: string): number {
  const [r, g, b] = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
  return ((0xff << 24) | ((b ?? 0) << 16) | ((g ?? 0) << 8) | (r ?? 0)) >>> 0;
}
