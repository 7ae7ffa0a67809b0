// Cards, tabs, fields, code and notices: what all views are made of.
// Knows nothing of the server. Text is always text: nothing here takes HTML.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icons";

export function Card(props: { title: string; hint?: ComponentChildren; end?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section class="card" aria-label={props.title}>
      <header>
        <h2>{props.title}</h2>
        {props.hint && <p>{props.hint}</p>}
        {props.end && <div class="end">{props.end}</div>}
      </header>
      {props.children}
    </section>
  );
}

export function Badge({ tone, children }: { tone?: "good" | "warn" | "bad" | "accent" | undefined; children: ComponentChildren }) {
  return <span class={`badge ${tone ?? ""}`}>{children}</span>;
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <span>{children}</span>}
    </div>
  );
}

export function Notice({ tone, children }: { tone?: "good" | "warn" | "bad"; children: ComponentChildren }) {
  return (
    <div class={`notice ${tone ?? ""}`} role={tone === "bad" ? "alert" : "status"}>
      <span>{children}</span>
    </div>
  );
}

/** Tabs, as the keyboard and a screen reader expect them. */
export function Tabs<T extends string>(props: { label: string; tabs: readonly (readonly [T, string])[]; chosen: T; choose: (tab: T) => void }) {
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = props.tabs.findIndex(([tab]) => tab === props.chosen);
    const next = (at + step + props.tabs.length) % props.tabs.length;
    props.choose(props.tabs[next]![0]);
    (list.current?.children[next] as HTMLElement | undefined)?.focus();
    event.preventDefault();
  };
  return (
    <div class="segments" role="tablist" aria-label={props.label} ref={list} onKeyDown={move}>
      {props.tabs.map(([tab, name]) => (
        <button key={tab} type="button" role="tab" aria-selected={tab === props.chosen} tabIndex={tab === props.chosen ? 0 : -1} onClick={() => props.choose(tab)}>
          {name}
        </button>
      ))}
    </div>
  );
}

export function Field({ label, hint, children }: { label: string; hint?: string; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {hint && <small>{hint}</small>}
    </label>
  );
}

/** Code that can be copied. */
export function Code({ code, label }: { code: string; label: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = () =>
    navigator.clipboard?.writeText(code).then(
      () => setCopied(true),
      () => undefined,
    );
  return (
    <div class="code">
      <pre tabIndex={0} role="region" aria-label={label}>
        {code}
      </pre>
      <button type="button" class="button slim" onClick={copy}>
        <Icon name={copied ? "done" : "copy"} />
        {copied ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

/** A dialog that the browser itself keeps the keyboard in. */
export function Dialog(props: { title: string; close: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
    return () => dialog.current?.close();
  }, []);
  return (
    <dialog ref={dialog} aria-label={props.title} onClose={props.close}>
      <h2>{props.title}</h2>
      {props.children}
    </dialog>
  );
}

/** Something that is asked of the server by hand: whether it is under way, and what came of it. */
export function useAction(): { busy: boolean; problem: string; run: (action: () => Promise<void>) => Promise<void> } {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const run = async (action: () => Promise<void>) => {
    setBusy(true);
    setProblem("");
    try {
      await action();
    } catch (error) {
      if ((error as Error).name !== "AbortError") setProblem((error as Error).message);
    } finally {
      setBusy(false);
    }
  };
  return { busy, problem, run };
}

/** An element's width, kept up to date. */
export function useWidth<T extends HTMLElement>(): [preact.RefObject<T>, number] {
  const element = useRef<T>(null);
  const [width, setWidth] = useState(600);
  useEffect(() => {
    if (!element.current) return;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(40, Math.floor(entry!.contentRect.width))));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}
