// The page: its frame, its views by the address, its theme and its key.
// Shows nothing of the server itself: the views do.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Collections } from "./collections";
import { Faults } from "./faults";
import { KeyDialog } from "./key";
import { Models } from "./models";
import { Now } from "./now";
import { Notice } from "./parts";
import { Icon, type IconName, Mark } from "./parts/icons";
import { Playground } from "./playground";
import { type Link, reconnect, useLive } from "./state/live";
import { savedKey } from "./state/server";
import { useTheme } from "./theme";

type View = "now" | "models" | "playground" | "collections" | "faults";

const VIEWS: Record<View, { title: string; icon: IconName }> = {
  now: { title: "Now", icon: "now" },
  models: { title: "Models", icon: "models" },
  playground: { title: "Playground", icon: "playground" },
  collections: { title: "Collections", icon: "collections" },
  faults: { title: "Faults", icon: "faults" },
};

function viewOfAddress(): View {
  const name = location.hash.replace(/^#\/?/, "").split("/")[0] as View;
  return name in VIEWS ? name : "now";
}

function useView(): View {
  const [view, setView] = useState(viewOfAddress);
  useEffect(() => {
    const changed = () => setView(viewOfAddress());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return view;
}

const LINK_WORDS: Record<Link, [string, string]> = {
  connecting: ["warn", "Connecting"],
  live: ["good", "Live"],
  lost: ["bad", "Connection lost"],
  key: ["warn", "A key is needed"],
};

function Page() {
  const live = useLive();
  const view = useView();
  const [theme, nextTheme] = useTheme();
  const [asksKey, askKey] = useState(false);
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  useEffect(reconnect, []);
  useEffect(() => {
    document.title = `${VIEWS[view].title} · magray`;
    // The keyboard goes on where the new view begins.
    if (!isFirst.current) main.current?.focus();
    isFirst.current = false;
  }, [view]);
  const [tone, words] = LINK_WORDS[live.link];
  const shown = (Object.keys(VIEWS) as View[]).filter((name) => name !== "faults" || live.features?.faults);
  const needsKey = live.link === "key";
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <div class="frame">
        <header class="rail">
          <div class="brand">
            <Mark />
            magray
            <small>{live.features?.magray}</small>
          </div>
          <nav aria-label="Views">
            <ul>
              {shown.map((name) => (
                <li key={name}>
                  <a href={`#/${name}`} {...(name === view ? { "aria-current": "page" as const } : {})}>
                    <Icon name={VIEWS[name].icon} />
                    {VIEWS[name].title}
                  </a>
                </li>
              ))}
            </ul>
          </nav>
          <div class="rail-foot">
            <div class="link-state" role="status">
              <i class={`dot ${tone}`} />
              <span>{words}</span>
            </div>
            <button type="button" onClick={() => askKey(true)}>
              <Icon name="key" />
              <span>{live.features?.key ? `Key: ${live.features.key}` : savedKey() ? "Change key" : "Use a key"}</span>
            </button>
            <button type="button" onClick={nextTheme}>
              <Icon name={theme === "dark" ? "dark" : "light"} />
              <span>{theme === "dark" ? "Dark colours" : "Light colours"}</span>
            </button>
          </div>
        </header>
        <main ref={main} id="content" tabIndex={-1}>
          {live.link === "lost" && <Notice tone="bad">The server does not answer. What is shown is from before; it is asked again every second.</Notice>}
          {needsKey ? (
            <KeyNeeded ask={() => askKey(true)} />
          ) : (
            <>
              {view === "now" && <Now live={live} />}
              {view === "models" && <Models live={live} />}
              {view === "playground" && <Playground live={live} />}
              {view === "collections" && <Collections live={live} />}
              {view === "faults" && <Faults live={live} />}
            </>
          )}
        </main>
      </div>
      {asksKey && <KeyDialog close={() => askKey(false)} />}
    </>
  );
}

function KeyNeeded({ ask }: { ask: () => void }) {
  return (
    <div class="empty">
      <h1>This server asks for a key</h1>
      <p>One of its users' or administrators' keys. It stays in this tab and goes to this server only.</p>
      <button type="button" class="button main" onClick={ask}>
        Enter a key
      </button>
    </div>
  );
}

render(<Page />, document.getElementById("page")!);
