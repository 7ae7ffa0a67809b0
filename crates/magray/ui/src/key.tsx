// Asks for the key of the caller. It is kept for this tab alone and sent to this server alone.

import { useState } from "preact/hooks";
import { Dialog, Field } from "./parts";
import { reconnect } from "./state/live";
import { savedKey, saveKey } from "./state/server";

export function KeyDialog({ close }: { close: () => void }) {
  const [key, setKey] = useState(savedKey());
  const use = (chosen: string) => {
    saveKey(chosen.trim());
    reconnect();
    close();
  };
  return (
    <Dialog title="Key" close={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          use(key);
        }}
      >
        <Field label="Key of a user or administrator" hint="Kept in this tab until it is closed. With an administrator's key the page can move models.">
          <input type="password" value={key} autoComplete="off" spellcheck={false} onInput={(event) => setKey(event.currentTarget.value)} />
        </Field>
        <div class="row">
          <button type="submit" class="button main">
            Use it
          </button>
          {savedKey() && (
            <button type="button" class="button" onClick={() => use("")}>
              Forget it
            </button>
          )}
          <button type="button" class="button quiet" onClick={close}>
            Cancel
          </button>
        </div>
      </form>
    </Dialog>
  );
}
