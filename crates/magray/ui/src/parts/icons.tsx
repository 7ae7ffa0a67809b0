// The icons of the page, as strokes of one width. Decoration only: a word stands beside each.

const PATHS = {
  now: "M3 12h4l3-8 4 16 3-8h4",
  models: "M12 3l8 4.5v9L12 21l-8-4.5v-9L12 3zm0 0v18m8-13.5L12 12 4 7.5",
  playground: "M4 6h16M4 12h10M4 18h7m6-3v6m-3-3h6",
  collections: "M5 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4zm14 4a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM9 20a2 2 0 1 0 0-4 2 2 0 0 0 0 4zm1-11a1.5 1.5 0 1 0 0-3M16 19.5a1.5 1.5 0 1 0 0-3",
  faults: "M13 2L4 14h7l-1 8 9-12h-7l1-8z",
  light: "M12 17a5 5 0 1 0 0-10 5 5 0 0 0 0 10zm0-15v2m0 16v2M4.2 4.2l1.4 1.4m12.8 12.8l1.4 1.4M2 12h2m16 0h2M4.2 19.8l1.4-1.4M18.4 5.6l1.4-1.4",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  key: "M14 10a4 4 0 1 0-3.5 4L13 16.5h2.5V19H18v2h3v-3l-6.6-6.6A4 4 0 0 0 14 10zM9.5 9.5h0",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  done: "M4 12.5l5 5L20 6.5",
  play: "M7 4l13 8-13 8V4z",
  stop: "M6 6h12v12H6z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Mark() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="#4f46e5" />
      <path
        d="M7 23V10.5a1.5 1.5 0 0 1 2.7-.9L16 18l6.3-8.4a1.5 1.5 0 0 1 2.7.9V23"
        fill="none"
        stroke="#fff"
        stroke-width="3"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}
