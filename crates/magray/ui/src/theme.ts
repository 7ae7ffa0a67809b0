// Light or dark: what the system has, until the reader chooses.

import { useEffect, useState } from "preact/hooks";

export type Theme = "light" | "dark";

const NAME = "magray-theme";

function chosen(): Theme | null {
  try {
    const theme = localStorage.getItem(NAME);
    return theme === "light" || theme === "dark" ? theme : null;
  } catch {
    return null;
  }
}

export function useTheme(): [Theme, () => void] {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const [theme, setTheme] = useState<Theme>(chosen() ?? (system.matches ? "dark" : "light"));
  useEffect(() => {
    const changed = () => chosen() ?? setTheme(system.matches ? "dark" : "light");
    system.addEventListener("change", changed);
    return () => system.removeEventListener("change", changed);
  }, []);
  document.documentElement.dataset["theme"] = theme;
  const next = () => {
    const other = theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(NAME, other);
    } catch {
      // Then it is chosen for this page only.
    }
    setTheme(other);
  };
  return [theme, next];
}
