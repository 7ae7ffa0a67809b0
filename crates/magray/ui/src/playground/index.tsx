// The playground: embed and compare, rerank, chat, let critics judge, search; each with its request for elsewhere.
// Shows only what a model of this server does.

import { useState } from "preact/hooks";
import { Empty, Tabs } from "../parts";
import type { Live } from "../state/live";
import type { Does, FeatureModel } from "../state/types";
import { Chat } from "./chat";
import { Critics } from "./critics";
import { Embed } from "./embed";
import { Rerank } from "./rerank";
import { Search } from "./search";

type Tab = "embed" | "rerank" | "chat" | "critics" | "search";

export function Playground({ live }: { live: Live }) {
  const [tab, setTab] = useState<Tab>("embed");
  const features = live.features;
  if (!features) return <Head />;
  const having = (...does: Does[]): FeatureModel[] => features.models.filter((model) => does.includes(model.does));
  const tabs: [Tab, string, boolean][] = [
    ["embed", "Embed and compare", having("embed").length > 0],
    ["rerank", "Rerank", having("rank", "embed").length > 0],
    ["chat", "Chat", having("generate").length > 0],
    ["critics", "Critics", features.evaluate && having("generate").length > 0],
    ["search", "Search", having("embed").length > 0],
  ];
  const shown = tabs.filter(([, , isThere]) => isThere).map(([name, words]) => [name, words] as const);
  if (shown.length === 0) {
    return (
      <>
        <Head />
        <Empty title="No model is served">Pull one under Models, or start the server with --model.</Empty>
      </>
    );
  }
  const chosen = shown.some(([name]) => name === tab) ? tab : shown[0]![0];
  return (
    <>
      <Head>
        <Tabs label="What to try" tabs={shown} chosen={chosen} choose={setTab} />
      </Head>
      {chosen === "embed" && <Embed models={having("embed")} />}
      {chosen === "rerank" && <Rerank models={[...having("rank"), ...having("embed")]} />}
      {chosen === "chat" && <Chat models={having("generate")} />}
      {chosen === "critics" && <Critics models={having("generate")} />}
      {chosen === "search" && <Search />}
    </>
  );
}

function Head({ children }: { children?: preact.ComponentChildren }) {
  return (
    <div class="page-head">
      <h1>Playground</h1>
      {children}
    </div>
  );
}
