// Faults of simulated devices, by hand: kill, hang, fill the memory, and watch that nothing gets lost.
// There only in a server that was started to show them, and for administrators.

import { useState } from "preact/hooks";
import { Badge, Card, Empty, Notice, useAction } from "../parts";
import { count, words } from "../state/numbers";
import type { Live } from "../state/live";
import { askJson } from "../state/server";
import { Incidents } from "../now/incidents";

type Fault = "kill" | "hang" | "oom" | "wrong" | "gpu_fault";

const FAULTS: [Fault, string, string][] = [
  ["kill", "Kill its worker", "The process ends at once, as by kill -9."],
  ["hang", "Hang a batch", "A batch never ends; the worker is replaced."],
  ["oom", "Fill its memory", "The next batch finds none; it is made smaller."],
  ["wrong", "Spoil its answers", "Numbers come back wrong; the canary notices."],
  ["gpu_fault", "Fault the GPU", "The next batch meets an illegal address."],
];

export function Faults({ live }: { live: Live }) {
  const action = useAction();
  const [done, setDone] = useState("");
  const { now, features } = live;
  if (!now || !features) return <Head />;
  if (!features.faults) {
    return (
      <>
        <Head />
        <Empty title="No faults here">They can be injected in the server that `magray demo` starts.</Empty>
      </>
    );
  }
  const simulated = now.engine.devices.filter((device) => device.is_gpu);
  const inject = (device: string, fault: Fault) =>
    action.run(async () => {
      await askJson("/ui/faults", { method: "POST", body: { device, fault } });
      setDone(`${words(fault)} on ${device}`);
    });
  const lost = now.incidents.reduce((sum, incident) => sum + incident.refused, 0);
  const met = now.incidents.reduce((sum, incident) => sum + incident.requests, 0);
  return (
    <>
      <Head>break a simulated GPU, and watch what becomes of its requests</Head>
      <div class="stack">
        {action.problem && <Notice tone="bad">{action.problem}</Notice>}
        {done && !action.problem && <Notice tone="good">Injected: {done}.</Notice>}
        {!features.may_change && <Notice>Faults need an administrator's key.</Notice>}
        <div class="tiles">
          <dl class="card tile">
            <dt>Incidents</dt>
            <dd class="figure">{now.incidents.length}</dd>
            <dd class="below">since the start, at most the last 64</dd>
          </dl>
          <dl class="card tile">
            <dt>Requests that met one</dt>
            <dd class="figure">{count(met)}</dd>
            <dd class="below">their batch was lost with a device</dd>
          </dl>
          <dl class="card tile">
            <dt>Of these, lost</dt>
            <dd class="figure">{count(lost)}</dd>
            <dd class="below">{met === 0 ? "nothing has happened yet" : lost === 0 ? "all others were computed again" : "answered with an error"}</dd>
          </dl>
        </div>
        <div class="devices">
          {simulated.map((device) => (
            <Card key={device.name} title={device.name} hint={device.hardware ?? "simulated"} end={<Badge tone={device.state === "in_rotation" ? "good" : "warn"}>{words(device.state)}</Badge>}>
              <ul class="fault-list">
                {FAULTS.map(([fault, name, what]) => (
                  <li key={fault}>
                    <div class="grow">
                      <strong>{name}</strong>
                      <p class="small muted">{what}</p>
                    </div>
                    <button type="button" class="button slim bad" disabled={!features.may_change || action.busy} aria-label={`${words(fault)}: ${name} of ${device.name}`} onClick={() => void inject(device.name, fault)}>
                      {words(fault)}
                    </button>
                  </li>
                ))}
              </ul>
            </Card>
          ))}
        </div>
        {simulated.length === 0 && <Empty title="No simulated GPU" />}
        <Incidents now={now} />
      </div>
    </>
  );
}

function Head({ children }: { children?: preact.ComponentChildren }) {
  return (
    <div class="page-head">
      <h1>Faults</h1>
      <p>{children}</p>
    </div>
  );
}
